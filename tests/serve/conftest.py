"""The run folder of the tests that start a server on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

try:
    import fastapi  # noqa: F401
except ImportError:  # without vitkit[serve] the other tests, such as those marked gpu, can still be collected
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.serve.servers import small_run

    return small_run(tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.pages.browser import CHROMIUM_FLAGS
    from tests.serve.browser import CAMERA

    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=[*CHROMIUM_FLAGS, *CAMERA])
        yield browser
        browser.close()
