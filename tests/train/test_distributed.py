"""Two processes as one: the losses, scores and weights of one process, and checkpoints that either can go on from."""

from __future__ import annotations

import json
import os
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
from tests.data.images import encode, scene
from tests.train.runs import (
    LONG,
    Command,
    lines,
    losses,
    rewound,
    same,
    states,
    steps_of,
    torchrun,
    two,
    weights,
    words,
)
from vitkit.errors import ConfigError
from vitkit.run_folder import RunError
from vitkit.train import checkpoint
from vitkit.train.distributed import Processes

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, SAVED = 8, 5
# without dropout and random augmentation, which are drawn for each process
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
    """Each made once, when first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.alone = cache(self.alone)
        self.shared = cache(self.shared)

    def alone(self, **settings: Any) -> Path:
        run = self._place("alone", settings)
        started = Command(words(run, **{**PLAIN, **settings}), self.folder / "log")
        assert started.wait() == 0, started.said
        return run

    def shared(self, how: str, **settings: Any) -> Path:
        run = self._place(how, settings)
        clean(torchrun(*words(run, **{**PLAIN, **settings}, parallel=how)))
        return run

    def _place(self, kind: str, settings: dict[str, Any]) -> Path:
        return self.folder / "-".join(
            [kind, *(f"{name}={str(value).replace('/', '')}" for name, value in settings.items())]
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def clean(done: subprocess.CompletedProcess[str]) -> None:
    """Both processes came to their end, and nothing is to be said about it."""
    assert done.returncode == 0, done.stderr
    for trouble in ("destroy_process_group", "Warning", "Traceback", "leaked", "[W"):
        assert trouble not in done.stderr, done.stderr


def assert_close(run: Path, other: Path) -> None:
    assert losses(run) == pytest.approx(losses(other), rel=0, abs=CLOSE)
    assert len(losses(run)) == STEPS
    for ours, theirs in zip(lines(run, "score"), lines(other, "score"), strict=True):
        assert ours["top1"] == theirs["top1"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0, abs=CLOSE)
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.endswith("qkv.bias"):  # a key's bias has no gradient but rounding errors, which Adam makes steps of
            ours[name], theirs[name] = (bias[name].view(3, -1)[[0, 2]] for bias in (ours, theirs))
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=CLOSE, msg=name)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_give_the_losses_of_one(how: str, runs: Runs):
    """With accumulation, clipping, averaging, and looks at the dev pictures."""
    assert_close(runs.shared(how), runs.alone())
    assert len(lines(runs.shared(how), "score")) == 2
    record = json.loads((runs.shared(how) / "run.json").read_text())
    assert record["plan"]["processes"] == 2
    assert record["plan"]["accumulate"] == 2


def test_sharded_processes_hold_a_part_of_most_tensors_each(runs: Runs):
    for how, shares in (("ddp", False), ("fsdp", True)):
        files = list((runs.shared(how) / "checkpoints" / f"step-{STEPS:08d}").glob("*.safetensors"))
        one, other = (load_file(file) for file in files)
        both = [name for name in one.keys() & other.keys() if one[name].ndim > 1]
        assert (len(both) > 20) == shares


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_what_two_processes_saved_is_one_model(how: str, runs: Runs):
    assert same(dict(vitkit.load(runs.shared(how) / "checkpoints").state_dict()), weights(runs.shared(how)))


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_what_two_processes_saved_one_goes_on_from(how: str, runs: Runs, tmp_path: Path):
    run = rewound(runs.shared(how), tmp_path / "run")
    resumed = Command(["resume", str(run)], tmp_path / "log")
    assert resumed.wait() == 0, resumed.said
    assert_close(run, runs.alone())


@pytest.mark.parametrize("how", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_what_one_process_saved_two_go_on_from(how: str, runs: Runs, tmp_path: Path):
    run = rewound(runs.alone(), tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace('parallel = "auto"', f'parallel = "{how}"'))
    clean(torchrun("resume", str(run)))
    assert_close(run, runs.alone())


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "resumed"), [("ddp", "fsdp"), ("fsdp", "ddp"), ("fsdp", "fsdp"), ("ddp", "ddp")])
def test_what_two_processes_saved_two_go_on_from(saved: str, resumed: str, runs: Runs, tmp_path: Path):
    run = rewound(runs.shared(saved), tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace(f'parallel = "{saved}"', f'parallel = "{resumed}"'))
    clean(torchrun("resume", str(run)))
    assert_close(run, runs.alone())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
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
def test_two_processes_give_the_losses_of_one_with_other_settings(how: str, settings: dict[str, Any], runs: Runs):
    assert_close(runs.shared(how, **settings), runs.alone(**settings))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_in_bf16_give_about_the_losses_of_one_in_float32(how: str, runs: Runs):
    assert losses(runs.shared(how, precision="bf16")) == pytest.approx(losses(runs.alone()), rel=0, abs=2e-2)
    assert json.loads((runs.shared(how, precision="bf16") / "run.json").read_text())["precision"] == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_masked_patches_are_learned_by_two_processes_and_then_by_one(how: str, tmp_path: Path):
    run = tmp_path / "run"
    clean(torchrun(*words(run, verb="pretrain", steps=6, save_every=4, parallel=how)))
    halfway = rewound(run, tmp_path / "halfway")
    resumed = Command(["resume", str(halfway)], tmp_path / "log")
    assert resumed.wait() == 0, resumed.said
    assert losses(halfway)[:4] == losses(run)[:4]
    assert len(losses(halfway)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes_choose_a_rate_and_stop_early_together(how: str, tmp_path: Path):
    run = tmp_path / "run"
    settings = {**PLAIN, "choose_lr": True, "lr_candidates": (1e-4, 0.003), "patience": 1, "score_every": 2}
    clean(torchrun(*words(run, **settings, parallel=how)))
    for rate in ("0.0001", "0.003"):
        looks = [look["top1"] for look in lines(run / "rates" / rate, "score")]
        assert all(later > before for before, later in pairwise(looks[:-1]))
        assert looks[-1] <= looks[-2] or len(looks) == STEPS // 2
        assert len(lines(run / "rates" / rate, "step")) == 2 * len(looks)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_both_processes_stop_when_asked_and_go_on_as_if_nothing_had_been(how: str, runs: Runs, tmp_path: Path):
    run = tmp_path / "run"
    with two(*words(run, **{**PLAIN, "save_every": 100}, parallel=how)) as started:
        while steps_of(run) < 3:
            assert started.poll() is None, started.communicate()
            time.sleep(0.01)
        os.kill(started.pid, signal.SIGTERM)
        _, error = started.communicate(timeout=LONG)
    assert f"vitkit resume {run} goes on from there" in error
    assert max(states(run)) == f"step-{steps_of(run):08d}"
    clean(torchrun("resume", str(run)))
    assert_close(run, runs.alone())


@pytest.mark.slow
def test_a_process_that_is_killed_takes_the_other_with_it_and_both_go_on(runs: Runs, tmp_path: Path):
    run = tmp_path / "run"
    with two(*words(run, **PLAIN, parallel="fsdp")) as started:
        while steps_of(run) < 6:
            assert started.poll() is None, started.communicate()
            time.sleep(0.01)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        started.communicate(timeout=LONG)
    assert started.returncode != 0
    clean(torchrun("resume", str(run)))
    assert_close(run, runs.alone())


@pytest.mark.slow
def test_a_mistake_is_told_without_tracebacks_of_those_who_waited(runs: Runs):
    done = torchrun(*words(runs.alone(), **PLAIN))
    assert done.returncode != 0
    assert "holds a finished run already; nothing was changed" in done.stderr
    assert "Connection" not in done.stderr
    assert "[rank1]" not in done.stderr


@pytest.mark.slow
def test_a_broken_picture_that_both_processes_met_counts_once(tmp_path: Path):
    """Twelve broken ones of 100, met again in every epoch: 12 %, not 24 %."""
    for index in range(100):
        folder = tmp_path / "photos" / "train" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture = encode(np.roll(scene(16, 16), index, axis=1), "PNG")
        (folder / f"{index}.png").write_bytes(picture[:50] if index < 12 else picture)
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
    clean_but_for_pictures = torchrun(*words(tmp_path / "run", **settings, max_failed=0.15))
    assert clean_but_for_pictures.returncode == 0, clean_but_for_pictures.stderr
    assert len(lines(tmp_path / "run", "left-out")) == 12
    done = torchrun(*words(tmp_path / "other", **settings, max_failed=0.05))
    assert done.returncode != 0
    assert "pictures could not be decoded so far, more than 5.0%" in done.stderr
    assert "Connection" not in done.stderr


def test_a_run_folder_that_one_machine_has_for_itself_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint, "DISK_LAG", 0.0)
    for folders, told in (([tmp_path / "shared"] * 2, False), ([tmp_path / "one", tmp_path / "other"], True)):
        for folder in folders:
            folder.mkdir(exist_ok=True)
        everyone = Together(2)
        with ThreadPoolExecutor(2) as threads:
            checks = [
                threads.submit(checkpoint.check_shared, folder, everyone.rank(rank))
                for rank, folder in enumerate(folders)
            ]
        for check in checks:
            assert isinstance(check.exception(), RunError) is told
        assert not any(list(folder.iterdir()) for folder in folders)


def test_what_one_machine_lacks_everybody_hears_of(monkeypatch: pytest.MonkeyPatch):
    assert Processes(torch.device("cpu")).agreed(lambda: 42) == 42
    everyone = Together(2)
    monkeypatch.setattr(Processes, "everyones", lambda self, value: everyone.rank(self.rank).everyones(value))

    def missing() -> int:
        raise ConfigError("pets does not exist.")

    with ThreadPoolExecutor(2) as threads:
        first, second = (
            threads.submit(Processes(torch.device("cpu"), rank, 2).agreed, action)
            for rank, action in enumerate((lambda: 42, missing))
        )
    assert str(first.exception()) == "process 1 of 2, on its machine: pets does not exist."
    assert str(second.exception()) == "pets does not exist."


class Together:
    """Threads in the place of processes."""

    def __init__(self, ranks: int):
        self.ranks, self.all, self.said = ranks, threading.Barrier(ranks), dict[int, Any]()

    def rank(self, rank: int) -> Any:
        def everyones(value: Any) -> list[Any]:
            self.said[rank] = value
            self.all.wait()
            found = [self.said[each] for each in range(self.ranks)]
            self.all.wait()
            return found

        return SimpleNamespace(
            ranks=self.ranks,
            first=rank == 0,
            barrier=self.all.wait,
            everyones=everyones,
            told=lambda value: everyones(value)[0],
        )
