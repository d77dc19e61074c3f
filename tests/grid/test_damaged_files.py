"""Grid files and the runs of a grid, whatever stands in them: their content, or an error of ours."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.damaged_json import damaged, damaged_text, damaged_toml
from tests.test_run import TINY, write_photos
from vitkit.cli.main import main
from vitkit.errors import ConfigError, VitkitError
from vitkit.grid.grid_file import read_grid
from vitkit.grid.outcome import read_outcome
from vitkit.run_folder import RunFolder
from vitkit.train.lr_search import trial_result

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GRID: dict[str, Any] = {
    "title": "rates",
    "seeds": 2,
    "baseline": "lr 0.001",
    "settings": {"data": "fashion", "weights": "none", "optimizer": {"kind": "adamw"}, "image": [28, 28]},
    "axes": {"lr": [0.001, 0.003], "augment.randaugment": [False, [2, 9]]},
    "arms": [{"name": "with mixup", "augment": {"mixup": 0.2}}],
}


@FEW
@given(draw=st.data())
def test_a_damaged_grid_file_is_read_or_is_an_error_of_ours(tmp_path: Path, draw: st.DataObject):
    path = tmp_path / "rates.toml"
    path.write_bytes(draw.draw(damaged_toml(GRID)))
    with contextlib.suppress(VitkitError):
        read_grid(path)


def test_combinations_of_axes_are_counted_before_they_are_made(tmp_path: Path):
    path = tmp_path / "large.toml"
    axes = "\n".join(f"axis{number} = {list(range(100))}" for number in range(10))  # 10 ** 20 arms
    path.write_text(f'[settings]\ndata = "fashion"\n[axes]\n{axes}\n')
    with pytest.raises(ConfigError, match="combinations"):
        read_grid(path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    photos = write_photos(folder / "photos", 6)
    main(["fit", str(photos), "--out", str(folder / "run"), *TINY, "--set", "score_every=1", "dev=0.3"])
    RunFolder(folder / "run").add_to_record(trial_seconds=3.0)
    return folder / "run"


@pytest.mark.parametrize("name", ["run.json", "evaluation.json", "metrics.jsonl"])
@FEW
@given(draw=st.data())
def test_a_damaged_trial_has_an_outcome_or_is_an_error_of_ours(
    name: str, original: Path, tmp_path: Path, draw: st.DataObject
):
    run = tmp_path / "run"
    if not run.exists():
        shutil.copytree(original, run)
    assert read_outcome(original).status == "finished"
    text = (original / name).read_text()
    if name.endswith(".jsonl"):
        rows = draw.draw(damaged([json.loads(line) for line in text.splitlines()]))
        (run / name).write_text("".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows])))
    else:
        (run / name).write_bytes(draw.draw(damaged_text(json.loads(text))))
    with contextlib.suppress(VitkitError):
        read_outcome(run)
    with contextlib.suppress(VitkitError):
        trial_result(RunFolder(run), "top1", rank=lambda result: (result["top1"], -result["loss"]))
