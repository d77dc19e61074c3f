"""Records of the paper's experiments, whatever stands in them: their content, or an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.damaged_json import NO_OBJECTS, damaged_text, damaged_toml
from tests.paper.test_claims import log_of
from vitkit.cli.main import main
from vitkit.errors import ConfigError, VitkitError
from vitkit.evaluate.evaluation import Estimate
from vitkit.paper.catalogue import all_claims, find_claims
from vitkit.paper.claim import Claim
from vitkit.paper.datasets import KNOWN, Datasets
from vitkit.paper.evidence import log_path, write_log
from vitkit.paper.page import write_page
from vitkit.paper.run_claim import measured_once
from vitkit.paper.study import latest_logs, verdicts
from vitkit.paper.vtab_record import RESULT, check_same, read_record, write_record
from vitkit.paper.vtab_scores import TaskScore, VtabScores
from vitkit.paper.vtab_tasks import FILE, Task, find_tasks

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CLAIMS = [pytest.param(claim, id=claim.name) for claim in all_claims()]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    folder = tmp_path_factory.mktemp("data")
    for note in KNOWN.values():
        (folder / note.names[0]).mkdir(parents=True)
    return Datasets(folder)


def good_log(claim: Claim, datasets: Datasets) -> dict[str, Any]:
    """Return a log of made-up numbers, in which the claim finds what it asks for."""
    random = np.random.default_rng(0)
    log: dict[str, Any] = {**log_of(claim, "small", datasets, lambda *key: float(random.uniform(10, 90)))}
    if claim.measure is not None:
        numbers = {
            "similarity_fresh": 0.1,
            "similarity_trained": 0.6,
            "distance": random.uniform(10, 90, (4, 3)).tolist(),
            "uniform": 60.0,
            "row_sum_error": 1e-7,
            "seconds": 1.0,
        }
        log["measured"] = {str(seed): numbers for seed in log["seeds"]}
    return log


@pytest.mark.parametrize("claim", CLAIMS)
@FEW
@given(draw=st.data())
def test_a_damaged_log_of_a_claim_gives_a_verdict_or_an_error_of_ours(
    claim: Claim, datasets: Datasets, tmp_path: Path, draw: st.DataObject
):
    log = good_log(claim, datasets)
    path = write_log(tmp_path, log)  # type: ignore[arg-type]
    assert verdicts(tmp_path).keys() == {claim.name}
    path.write_bytes(draw.draw(damaged_text(log)))
    with contextlib.suppress(VitkitError):
        verdicts(tmp_path)
        write_page(tmp_path, latest_logs(tmp_path))


def test_a_log_without_an_arm_names_the_file_and_the_way_out(
    datasets: Datasets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (claim,) = find_claims("positions")
    log = good_log(claim, datasets)
    del log["arms"][2]
    write_log(tmp_path, log)  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "positions-small.json" in message
    assert "vitkit paper positions --scale small" in message


def test_the_log_of_another_claim_is_refused(datasets: Datasets, tmp_path: Path):
    (claim,) = find_claims("positions")
    path = write_log(tmp_path, good_log(claim, datasets))  # type: ignore[arg-type]
    path.rename(log_path(tmp_path, "shape", "small"))
    with pytest.raises(ConfigError, match="it is the log of positions"):
        verdicts(tmp_path)


@FEW
@given(draw=st.data())
def test_damaged_measurements_are_read_or_taken_again_or_are_an_error_of_ours(tmp_path: Path, draw: st.DataObject):
    path, runs = tmp_path / "measured/figure7-small-seed0.json", {"arm": "run"}
    path.unlink(missing_ok=True)
    assert measured_once(path, runs, lambda: {"uniform": 60.0})["uniform"] == 60.0
    path.write_bytes(draw.draw(damaged_text(json.loads(path.read_text()))))
    with contextlib.suppress(VitkitError):
        numbers = measured_once(path, runs, lambda: {"uniform": 61.0})
        assert numbers["seconds"] + 1.0 is not None  # they are summed up


TASK = Task(name="birds", data="/data/birds", group="natural", crop=True, flip=True)
SCORE = TaskScore(
    task="birds",
    group="natural",
    classes=3,
    trained=1000,
    scored=500,
    top1=Estimate(value=0.7, low=0.6, high=0.8),
    crop=True,
    flip=True,
)


@FEW
@given(draw=st.data())
def test_a_damaged_record_of_a_vtab_is_read_or_is_an_error_of_ours(tmp_path: Path, draw: st.DataObject):
    scores = VtabScores(weights="ti16", method="linear", tasks=(SCORE,), differs=())
    write_record(tmp_path, scores, {"image": 32, "subset_images": 10}, [TASK], complete=True)
    path = tmp_path / RESULT
    path.write_bytes(draw.draw(damaged_text(json.loads(path.read_text()))))
    with contextlib.suppress(VitkitError):
        before = read_record(tmp_path)
        check_same(before, tmp_path, "ti16", "linear", {"image": 32, "subset_images": 10}, [TASK])
        assert before is not None
        if before["tasks"]:
            assert [*VtabScores(weights="ti16", method="linear", tasks=tuple(before["tasks"]), differs=()).table()]


@FEW
@given(draw=st.data())
def test_a_damaged_description_of_tasks_is_read_or_is_an_error_of_ours(tmp_path: Path, draw: st.DataObject):
    (tmp_path / "cifar100/train/ant").mkdir(parents=True, exist_ok=True)
    described = {"birds": {"group": "natural", "crop": True, "data": "hf:OWNER/NAME"}, "cifar100": {"label": "fine"}}
    (tmp_path / FILE).write_bytes(draw.draw(damaged_toml(described)))
    with contextlib.suppress(VitkitError):
        assert all(isinstance(task, Task) for task in find_tasks(tmp_path))


READERS: dict[str, Callable[[Path], object]] = {RESULT: read_record, FILE: find_tasks}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_a_file_that_is_no_record_is_an_error_that_names_it(name: str, text: bytes, tmp_path: Path):
    if name == FILE and not text:  # TOML without a key
        return
    (tmp_path / "cifar100").mkdir()
    (tmp_path / name).write_bytes(text)
    with pytest.raises(VitkitError, match=name):
        READERS[name](tmp_path)
