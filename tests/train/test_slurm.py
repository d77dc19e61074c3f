"""Runs that srun starts in two processes: preempted and requeued, they end with the same bytes.

The scripts are those of examples/cluster, and the commands of Slurm those of `tests.fake_slurm`.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fake_slurm import FakeSlurm, wait_for
from tests.train.runs import LONG, command_line, last_step, metric_lines, states

SCRIPTS = Path(__file__).parents[2] / "examples" / "cluster"
STEPS = 24
SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "save_every": 100,  # only the signal saves
    "subset": 0.05,
    "lr": 0.003,
    "optimizer__kind": "adamw",
    "dropout": 0.1,
    "average": 0.9,
    "augment__mixup": 0.2,
}


def sbatch_options(script: str, nodes: int = 1) -> list[str]:
    return [f"--nodes={nodes}", f"--ntasks-per-node={2 // nodes}", str(SCRIPTS / script)]


def fit_arguments(run: Path, **settings: Any) -> list[str]:
    """Return what follows `vitkit fit`."""
    return command_line(run, **{**SETTINGS, **settings})[1:]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    slurm = FakeSlurm(folder / "slurm")
    job = slurm.sbatch(*sbatch_options("slurm-preemptible.sh"), *fit_arguments(folder / "run"))
    assert job.wait(LONG) == 0, slurm.log
    assert slurm.codes == [0]
    return folder / "run"


@pytest.mark.parametrize(
    "ranks", [[1], pytest.param([0], marks=pytest.mark.slow), pytest.param([0, 1], marks=pytest.mark.slow)]
)
def test_a_preempted_run_is_requeued_to_the_same_bytes(ranks: list[int], undisturbed: Path, tmp_path: Path):
    slurm, run = FakeSlurm(tmp_path / "slurm"), tmp_path / "run"
    job = slurm.sbatch(*sbatch_options("slurm-preemptible.sh"), *fit_arguments(run))
    wait_for(lambda: last_step(run) >= 3, job, slurm)
    slurm.signal(signal.SIGUSR2, ranks)
    assert job.wait(LONG) == 0, slurm.log
    assert slurm.codes == [128 + signal.SIGUSR2, 0]
    (saved,) = re.findall(rf"saved at step (\d+) of {STEPS}; vitkit resume", slurm.log)  # one rank says it
    assert 3 <= int(saved) < STEPS
    assert f"continued {run}: requeue 1 of Slurm" in slurm.log
    assert "Traceback" not in slurm.log
    assert (run / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    assert metric_lines(run) == metric_lines(undisturbed)
    assert {"step-00000000", f"step-{STEPS:08d}"} & states(run).keys()
