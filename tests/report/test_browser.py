"""The report in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.browser import check_on_a_phone
from tests.report.run_folders import HOSTILE, make_evaluation, make_split, write_run
from vitkit.report.page import write_report


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_a_report_fits_a_phone_and_fetches_nothing(tmp_path: Path, color_scheme: str) -> None:
    split = make_split(HOSTILE)
    write_run(tmp_path, HOSTILE, evaluation=make_evaluation(HOSTILE, split), command="vitkit fit " + "x" * 200)
    text, background = check_on_a_phone(write_report(tmp_path, split), color_scheme)
    assert text != background
