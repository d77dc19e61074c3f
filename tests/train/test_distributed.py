"""Distributed training: two processes give the losses and weights of one, and resume each other's checkpoints."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitkit
from tests.data.sample_images import encode, scene
from tests.train.runs import (
    LONG,
    Command,
    command_line,
    last_step,
    losses,
    metric_lines,
    rewind,
    same_tensors,
    start_two,
    states,
    torchrun,
    weights,
)
from vitkit.errors import ConfigError
from vitkit.run_folder import RunError
from vitkit.train import checkpoint
from vitkit.train.distributed import Processes, lost_peer

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, SAVED = 8, 5
# without dropout and random augmentation, which each rank draws for itself
PLAIN: dict[str, Any] = {
    "steps": STEPS,
    "save_every": SAVED,
    "micro": 4,
    "lr": 0.003,
    "optimizer__kind": "adamw",
    "schedule__warmup": 2,
    "label_smoothing": 0.1,
    "average": 0.9,
    "dev": 0.02,
    "score_every": 4,
    "augment__crop": False,
    "augment__flip": False,
    "augment__randaugment": False,
    "augment__mixup": 0.0,
}
CLOSE = 1e-5


class Runs:
    """Runs that are trained once, when first requested."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.single = cache(self.single)
        self.distributed = cache(self.distributed)

    def single(self, **settings: Any) -> Path:
        run = self._path("single", settings)
        started = Command(command_line(run, **{**PLAIN, **settings}), self.folder / "log")
        assert started.wait() == 0, started.output
        return run

    def distributed(self, parallel: str, **settings: Any) -> Path:
        run = self._path(parallel, settings)
        assert_clean(torchrun(*command_line(run, **{**PLAIN, **settings}, parallel=parallel)))
        return run

    def _path(self, kind: str, settings: dict[str, Any]) -> Path:
        return self.folder / "-".join(
            [kind, *(f"{name}={str(value).replace('/', '')}" for name, value in settings.items())]
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def assert_clean(done: subprocess.CompletedProcess[str]) -> None:
    """Assert that both processes ended without an error or a warning."""
    assert done.returncode == 0, done.stderr
    for trouble in ("destroy_process_group", "Warning", "Traceback", "leaked", "[W"):
        assert trouble not in done.stderr, done.stderr


def assert_close(run: Path, other: Path) -> None:
    assert losses(run) == pytest.approx(losses(other), rel=0, abs=CLOSE)
    assert len(losses(run)) == STEPS
    for ours, theirs in zip(metric_lines(run, "score"), metric_lines(other, "score"), strict=True):
        assert ours["top1"] == theirs["top1"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0, abs=CLOSE)
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.endswith("qkv.bias"):  # the key bias has no gradient but rounding errors, which Adam amplifies
            ours[name], theirs[name] = (bias[name].view(3, -1)[[0, 2]] for bias in (ours, theirs))
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=CLOSE, msg=name)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_give_the_losses_of_one(parallel: str, runs: Runs):
    """With gradient accumulation, clipping, EMA and validation."""
    assert_close(runs.distributed(parallel), runs.single())
    assert len(metric_lines(runs.distributed(parallel), "score")) == 2
    record = json.loads((runs.distributed(parallel) / "run.json").read_text())
    assert record["plan"]["processes"] == 2
    assert record["plan"]["accumulate"] == 2


def test_fsdp_shards_most_tensors_and_ddp_none(runs: Runs):
    for parallel, shares in (("ddp", False), ("fsdp", True)):
        files = list((runs.distributed(parallel) / "checkpoints" / f"step-{STEPS:08d}").glob("*.safetensors"))
        one, other = (load_file(file) for file in files)
        both = [name for name in one.keys() & other.keys() if one[name].ndim > 1]
        assert (len(both) > 20) == shares


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_processes_is_one_model(parallel: str, runs: Runs):
    assert same_tensors(
        dict(vitkit.load(runs.distributed(parallel) / "checkpoints").state_dict()), weights(runs.distributed(parallel))
    )


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_one_process_resumes_a_checkpoint_of_two(parallel: str, runs: Runs, tmp_path: Path):
    run = rewind(runs.distributed(parallel), tmp_path / "run")
    resumed = Command(["resume", str(run)], tmp_path / "log")
    assert resumed.wait() == 0, resumed.output
    assert_close(run, runs.single())


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_two_processes_resume_a_checkpoint_of_one(parallel: str, runs: Runs, tmp_path: Path):
    run = rewind(runs.single(), tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace('parallel = "auto"', f'parallel = "{parallel}"'))
    assert_clean(torchrun("resume", str(run)))
    assert_close(run, runs.single())


def test_a_damaged_shard_of_one_rank_takes_both_to_the_checkpoint_before(runs: Runs, tmp_path: Path):
    complete = runs.distributed("fsdp")
    run = shutil.copytree(complete, tmp_path / "run")
    for name in ("model.json", "model.safetensors", "report.html"):
        (run / name).unlink()
    [shard] = (run / "checkpoints" / f"step-{STEPS:08d}").glob("shard-00002-*")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    done = torchrun("resume", str(run))
    assert_clean(done)
    assert f"({shard.name} is not as it was written)" in " ".join(done.stdout.split())
    assert same_tensors(weights(run), weights(complete))


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "resumed"), [("ddp", "fsdp"), ("fsdp", "ddp"), ("fsdp", "fsdp"), ("ddp", "ddp")])
def test_two_processes_resume_a_checkpoint_of_two(saved: str, resumed: str, runs: Runs, tmp_path: Path):
    run = rewind(runs.distributed(saved), tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace(f'parallel = "{saved}"', f'parallel = "{resumed}"'))
    assert_clean(torchrun("resume", str(run)))
    assert_close(run, runs.single())


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer__kind": "sgd", "lr": 0.1},
        {"micro": 8},
        {"freeze": 1},
        {"layer_decay": 0.5},
        {"model": "R+mu/16", "image": 32, "clip": 0.0, "optimizer__kind": "sgd", "lr": 0.03},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_two_processes_give_the_losses_of_one_with_other_settings(parallel: str, settings: dict[str, Any], runs: Runs):
    assert_close(runs.distributed(parallel, **settings), runs.single(**settings))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_in_bf16_give_about_the_losses_of_one_in_fp32(parallel: str, runs: Runs):
    assert losses(runs.distributed(parallel, precision="bf16")) == pytest.approx(losses(runs.single()), rel=0, abs=2e-2)
    assert json.loads((runs.distributed(parallel, precision="bf16") / "run.json").read_text())["precision"] == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_masked_patch_pretraining_of_two_processes_is_resumed_by_one(parallel: str, tmp_path: Path):
    run = tmp_path / "run"
    assert_clean(torchrun(*command_line(run, verb="pretrain", steps=6, save_every=4, parallel=parallel)))
    halfway = rewind(run, tmp_path / "halfway")
    resumed = Command(["resume", str(halfway)], tmp_path / "log")
    assert resumed.wait() == 0, resumed.output
    assert losses(halfway)[:4] == losses(run)[:4]
    assert len(losses(halfway)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_search_the_learning_rate_and_stop_early_together(parallel: str, tmp_path: Path):
    run = tmp_path / "run"
    settings = {**PLAIN, "choose_lr": True, "lr_candidates": (1e-4, 0.003), "patience": 1, "score_every": 2}
    assert_clean(torchrun(*command_line(run, **settings, parallel=parallel)))
    for rate in ("0.0001", "0.003"):
        scores = [line["top1"] for line in metric_lines(run / "rates" / rate, "score")]
        assert all(later > before for before, later in pairwise(scores[:-1]))
        assert scores[-1] <= scores[-2] or len(scores) == STEPS // 2
        assert len(metric_lines(run / "rates" / rate, "step")) == 2 * len(scores)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_signal_stops_both_processes_and_resuming_changes_nothing(parallel: str, runs: Runs, tmp_path: Path):
    run = tmp_path / "run"
    with start_two(*command_line(run, **{**PLAIN, "save_every": 100}, parallel=parallel)) as started:
        while last_step(run) < 3:
            assert started.poll() is None, started.communicate()
            time.sleep(0.01)
        os.kill(started.pid, signal.SIGTERM)
        _, error = started.communicate(timeout=LONG)
    assert f"vitkit resume {run} continues from there" in error
    assert max(states(run)) == f"step-{last_step(run):08d}"
    assert_clean(torchrun("resume", str(run)))
    assert_close(run, runs.single())


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_the_run_can_be_resumed(runs: Runs, tmp_path: Path):
    run = tmp_path / "run"
    with start_two(*command_line(run, **PLAIN, parallel="fsdp")) as started:
        while last_step(run) < 6:
            assert started.poll() is None, started.communicate()
            time.sleep(0.01)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        started.communicate(timeout=LONG)
    assert started.returncode != 0
    assert_clean(torchrun("resume", str(run)))
    assert_close(run, runs.single())


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_disk_that_fills_up_stops_both_processes_and_resuming_changes_nothing(
    parallel: str, runs: Runs, tmp_path: Path
):
    """The shards of the first checkpoint, without moments, fit; those of the next one do not."""
    run, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))  # the processes inherit it
    try:
        done = torchrun(*command_line(run, **PLAIN, parallel=parallel))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.returncode != 0
    assert f"the checkpoint of step {SAVED} cannot be written to {run}/checkpoints: File too large." in done.stderr
    assert "Connection" not in done.stderr
    assert list(states(run)) == ["step-00000000"]
    assert_clean(torchrun("resume", str(run)))
    assert_close(run, runs.single())


@pytest.mark.slow
def test_an_error_is_printed_once_without_tracebacks_of_other_ranks(runs: Runs):
    done = torchrun(*command_line(runs.single(), **PLAIN))
    assert done.returncode != 0
    assert "holds a finished run already; nothing was changed" in done.stderr
    assert "Connection" not in done.stderr
    assert "[rank1]" not in done.stderr


@pytest.mark.slow
def test_a_broken_image_that_both_processes_loaded_counts_once(tmp_path: Path):
    """Twelve of 100 images are broken, and loaded in every epoch: 12 %, not 24 %."""
    for index in range(100):
        folder = tmp_path / "photos" / "train" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = encode(np.roll(scene(16, 16), index, axis=1), "PNG")
        (folder / f"{index}.png").write_bytes(image[:50] if index < 12 else image)
    for name in "ab":
        folder = tmp_path / "photos" / "test" / name
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(encode(scene(16, 16), "PNG"))
    settings = {
        "data": str(tmp_path / "photos"),
        "image": 16,
        "channels": 3,
        "steps": 60,
        "save_every": 100,
        "parallel": "ddp",
    }
    allowed = torchrun(*command_line(tmp_path / "run", **settings, max_failed=0.15))
    assert allowed.returncode == 0, allowed.stderr
    assert len(metric_lines(tmp_path / "run", "left-out")) == 12
    done = torchrun(*command_line(tmp_path / "other", **settings, max_failed=0.05))
    assert done.returncode != 0
    assert "images could not be decoded so far, more than 5.0%" in done.stderr
    assert "Connection" not in done.stderr


def test_a_run_folder_that_is_not_shared_is_an_error_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint, "DISK_LAG", 0.0)
    for folders, fails in (([tmp_path / "shared"] * 2, False), ([tmp_path / "one", tmp_path / "other"], True)):
        for folder in folders:
            folder.mkdir(exist_ok=True)
        group = ThreadGroup(2)
        with ThreadPoolExecutor(2) as threads:
            checks = [
                threads.submit(checkpoint.check_folder_shared, folder, group.rank(rank))
                for rank, folder in enumerate(folders)
            ]
        for check in checks:
            assert isinstance(check.exception(), RunError) is fails
        assert not any(list(folder.iterdir()) for folder in folders)


def test_a_failure_on_one_rank_raises_on_all(monkeypatch: pytest.MonkeyPatch):
    assert Processes(torch.device("cpu")).all_or_raise(lambda: 42) == 42
    group = ThreadGroup(2)
    monkeypatch.setattr(Processes, "gather", lambda self, value: group.rank(self.rank).gather(value))

    def missing() -> int:
        raise ConfigError("pets does not exist.")

    with ThreadPoolExecutor(2) as threads:
        first, second = (
            threads.submit(Processes(torch.device("cpu"), rank, 2).all_or_raise, action)
            for rank, action in enumerate((lambda: 42, missing))
        )
    assert str(first.exception()) == "rank 1 of 2 failed on its machine: pets does not exist."
    assert str(second.exception()) == "pets does not exist."


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), True),
        (torch.distributed.DistNetworkError("the client socket has timed out"), True),
        (RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (torch.OutOfMemoryError("gloo"), False),
        (RunError("the disk is full"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_lost_process_is_recognised_by_the_type_of_the_error_or_by_gloos_source_file(error: Exception, lost: bool):
    assert lost_peer(error) is lost


class ThreadGroup:
    """Threads that stand in for processes."""

    def __init__(self, world_size: int):
        self.world_size, self.all, self.values = world_size, threading.Barrier(world_size), dict[int, Any]()

    def rank(self, rank: int) -> Any:
        def gather(value: Any) -> list[Any]:
            self.values[rank] = value
            self.all.wait()
            gathered = [self.values[each] for each in range(self.world_size)]
            self.all.wait()
            return gathered

        return SimpleNamespace(
            world_size=self.world_size,
            is_rank_zero=rank == 0,
            barrier=self.all.wait,
            gather=gather,
            broadcast=lambda value: gather(value)[0],
        )
