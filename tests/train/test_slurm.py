"""Runs that srun starts in two processes: preempted and requeued, they end with the same bytes.

The scripts are those of examples/cluster, and the commands of Slurm those of `tests.fake_slurm`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fake_slurm import FakeSlurm, wait_for
from tests.train.runs import LONG, command_line, error_of, last_step, metric_lines
from vitkit.cli.main import main
from vitkit.run_folder import RunFolder

SCRIPTS = Path(__file__).parents[2] / "examples" / "cluster"
STEPS = 24
SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "save_every": 100,  # only the signal saves
    "subset": 0.05,
    "duplicates": "ignore",
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


@pytest.mark.slow
@pytest.mark.parametrize("script", ["slurm-single-node.sh", "slurm-multi-node.sh"])
def test_the_scripts_train_in_one_process_for_each_task(script: str, undisturbed: Path, tmp_path: Path):
    """The two nodes are 127.0.0.1 and 127.0.0.2: rank 0 is found through the list of nodes."""
    slurm, run = FakeSlurm(tmp_path / "slurm"), tmp_path / "run"
    job = slurm.sbatch(*sbatch_options(script, nodes=1 + ("multi" in script)), *fit_arguments(run))
    assert job.wait(LONG) == 0, slurm.log
    assert (run / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    assert RunFolder(run).record()["processes"] == 2


@pytest.mark.slow
def test_torchrun_that_restarts_the_processes_goes_on_with_the_run(undisturbed: Path, tmp_path: Path):
    """A process is killed; the same command, started again by --max-restarts, ends with the same bytes."""
    run = tmp_path / "run"
    options = ["--nproc-per-node=2", "--standalone", "--max-restarts=1", "--monitor-interval=0.1"]
    command = ["-m", "torch.distributed.run", *options, "-m", "vitkit", "fit", *fit_arguments(run, save_every=2)]
    with subprocess.Popen(
        [sys.executable, *command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as started:
        while last_step(run) < 5:
            assert started.poll() is None, started.communicate()
            time.sleep(0.01)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        output, _ = started.communicate(timeout=LONG)
    assert started.returncode == 0, output
    assert f"continued {run}: restart 1 of torchrun" in output
    assert (run / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_a_verb_that_does_not_train_is_refused_in_a_step_of_several_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, value in (("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_LOCALID", "0")):
        monkeypatch.setenv(name, value)
    assert "vitkit cost …, without srun" in error_of(capsys, "cost", "B/16")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")  # srun -n1
    main(["cost", "B/16"])
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")  # the script of sbatch
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2")
    main(["cost", "B/16"])


def test_a_batch_script_without_srun_trains_in_one_process_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It has SLURM_PROCID and SLURM_NTASKS as well, and must not wait for tasks that nobody starts."""
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
    for name, value in {**batch, "SLURM_TASKS_PER_NODE": "4"}.items():
        monkeypatch.setenv(name, value)
    main(["fit", *fit_arguments(tmp_path / "run", steps=1)])
    assert "3 tasks of this Slurm job are unused: start the command with srun" in capsys.readouterr().out
    assert RunFolder(tmp_path / "run").record()["processes"] == 1
