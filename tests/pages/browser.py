"""Chromium for tests of HTML pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def check_on_a_phone(path: Path, color_scheme: str) -> tuple[str, str]:
    """Open a page on a narrow screen and return the colours of text in figures and of the background.

    Nothing may stick out, be fetched, be missing or be reported on the console.
    """
    playwright: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme=color_scheme)
        requests: list[str] = []
        messages: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: messages.append(message.text))
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
        assert not messages
        assert page.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
        text, background = page.evaluate(
            "[getComputedStyle(document.querySelector('svg text')).fill,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        browser.close()
    return text, background
