"""`vitkit cost` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vitkit.cli.main import main


def test_costs_need_no_torch():
    script = "import sys; from vitkit.cli.main import main; main(['cost', 'B/16']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode == 0


def test_costs_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]):
    main(["cost", "B/16", "R50x1", "--images", "303000000", "--epochs", "7", "--batch", "256"])
    table = capsys.readouterr().out
    assert "86,567,656" in table
    assert "17.56" in table
    assert "223.5" in table
    assert max(map(len, table.splitlines())) <= 80


def test_costs_are_printed_as_json(capsys: pytest.CaptureFixture[str]):
    main(["cost", "B/16", "--image", "224", "320", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["image"] == [224, 320]
    assert content["models"][0]["tokens"] == 14 * 20 + 1
    assert "exaflops" not in content["models"][0]
