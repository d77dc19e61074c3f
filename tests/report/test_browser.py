"""The report in a real browser: nothing sticks out of a narrow phone, nothing is fetched, nothing complains."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.report.made import HOSTILE, make_evaluation, make_split, write_run
from vitkit.report.page import write_report

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def test_a_report_fits_a_phone_and_fetches_nothing(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    split = make_split(HOSTILE)
    write_run(tmp_path, HOSTILE, evaluation=make_evaluation(HOSTILE, split), command="vitkit fit " + "x" * 200)
    address = write_report(tmp_path, split).as_uri()
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=QUIET)
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme=scheme)
            asked: list[str] = []
            complaints: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("console", lambda message, complaints=complaints: complaints.append(message.text))
            page.goto(address)
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert [url for url in asked if not url.startswith("data:")] == [address]
            assert not complaints
            assert page.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
            # text in figures takes the page's colour, which differs between light and dark
            ink, paper = page.evaluate(
                "[getComputedStyle(document.querySelector('svg text')).fill,"
                " getComputedStyle(document.body).backgroundColor]"
            )
            assert ink != paper
        browser.close()
