"""Runs to test with: a toy on fashion, trained in this process, in others that can be killed, or in two at once."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.data.augment import augment
from vitkit.data.loader import Loader, Reader
from vitkit.data.sources.base import Data
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import Fast
from vitkit.devices import pick_device
from vitkit.run_folder import RunFolder
from vitkit.train import loop
from vitkit.train.distributed import Processes
from vitkit.train.trainer import train

FASHION = open_data("fashion")
TOY: dict[str, Any] = {
    "model": "mu/4",
    "weights": "none",
    "image": (28, 28),
    "channels": 1,
    "batch": 16,
    "micro": 8,
    "device": "cpu",
    "workers": 0,
    "precision": "fp32",
}
LONG = 120  # seconds that nothing here takes


def toy(out: Path, **settings: Any) -> Fit:
    return Fit(**{"data": "fashion", "out": str(out), **TOY, **settings})


def trained(config: Fit, data: Data = FASHION, say: Callable[[str, str], None] = lambda name, text: None) -> Path:
    """The loop alone, without what comes before and after it; a folder with a checkpoint is gone on with."""
    folder = RunFolder(Path(config.out))
    folder.path.mkdir(exist_ok=True)
    try:
        train(config, data, folder, Processes(pick_device(config.device)), say)
    finally:
        folder.close()
    return folder.path


def lines(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """Of metrics.jsonl; without `kinds` all but those that hold times."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]
    return [line for line in found if (line["kind"] in kinds if kinds else line["kind"] != "speed")]


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in lines(run, "step")]


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model.safetensors")


def states(run: Path) -> dict[str, dict[str, Tensor]]:
    """The checkpoints' tensors: weights, moments, averages."""
    return {
        folder.name: {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        for folder in (run / "checkpoints").glob("step-*")
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rewound(run: Path, out: Path) -> Path:
    """A copy of a finished run as it was at the checkpoint before its last."""
    shutil.copytree(run, out)
    shutil.rmtree(max((out / "checkpoints").glob("step-*")))
    for name in ("model.json", "model.safetensors"):
        (out / name).unlink()
    return out


def words(out: Path, verb: str = "fit", data: str = "fashion", **settings: Any) -> list[str]:
    """The command line of a toy's run."""
    values = {**TOY, **settings}
    return [
        verb,
        data,
        "--out",
        str(out),
        "--set",
        *(f"{name.replace('__', '.')}={_toml(value)}" for name, value in values.items()),
    ]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def poison(monkeypatch: pytest.MonkeyPatch, seed: int, passes: Iterable[int]) -> None:
    """Pictures of these passes become nan, however often they come."""
    reader = Reader(split=FASHION.splits["train"], transform=Fast(image=(28, 28)), channels=1, seed=seed)
    poisoned = [Loader(reader, batch=8).at(number).indices.tolist() for number in passes]

    def spoilt(images: Tensor, indices: Tensor, *rest: Any, **options: Any) -> Tensor:
        return augment(images, indices, *rest, **options) * (math.nan if indices.tolist() in poisoned else 1)

    monkeypatch.setattr(loop, "augment", spoilt)


class Command:
    """`vitkit WORDS` in a process of its own, which can be watched and killed; imports are paid for once.

    `dies_at`: a function, as "module:name", that kills the process with SIGKILL when called for the `after`-th time;
    `most` bytes in a file, past which the system refuses to write.
    """

    def __init__(self, words: list[str], log: Path, *, dies_at: str = "", after: int = 1, most: int | None = None):
        self.log = log
        self.process: BaseProcess = _server().Process(target=_command, args=(words, str(log), dies_at, after, most))
        self.process.start()

    def wait(self) -> int:
        """Its exit code."""
        self.process.join(LONG)
        assert self.process.exitcode is not None, f"still running: {self.said}"
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def kill_once(self, ready: Callable[[], bool]) -> bool:
        """Whether it could be, before it was through."""
        deadline = time.monotonic() + LONG
        while not ready() and self.process.is_alive():
            assert time.monotonic() < deadline, f"nothing happens: {self.said}"
            time.sleep(0.002)
        alive = self.process.is_alive()
        self.kill()
        return alive

    @property
    def said(self) -> str:
        return self.log.read_text()


def steps_of(run: Path) -> int:
    """How far a run that is under way has come."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in text.split("\n")[:-1]), default=0)


def command(*words: str, **options: Any) -> subprocess.Popen[str]:
    """The same as a shell would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "vitkit", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def two(*words: str) -> subprocess.Popen[str]:
    """In two processes."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "vitkit", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """In two processes, to their end."""
    with two(*words) as started:
        out, error = started.communicate(timeout=LONG)
    return subprocess.CompletedProcess(words, started.returncode, out, error)


def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vitkit.run", "tyro", "torch._dynamo"])  # the last for the first optimizer
    return context


def _command(words: list[str], log: str, dies_at: str, after: int, most: int | None) -> None:
    from vitkit.cli.main import main

    multiprocessing.set_start_method("fork", force=True)  # for readers: a forkserver's child would start another one
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    torch.set_num_threads(1)
    if dies_at:
        _kill_at(dies_at, after)
    if most is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    main(words)


def _kill_at(place: str, after: int) -> None:
    module, _, name = place.partition(":")
    calls, function = [], getattr(import_module(module), name)

    def deadly(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    setattr(import_module(module), name, deadly)


def resume(run: Path, log: Path, *options: str) -> None:
    resumed = Command(["resume", str(run), *options], log)
    assert resumed.wait() == 0, resumed.said


def assert_same_end(run: Path, other: Path) -> None:
    """Weights, averages, moments and metrics: bit for bit."""
    assert lines(run) == lines(other)
    assert same(weights(run), weights(other))
    ours, theirs = states(run), states(other)
    assert ours.keys() == theirs.keys()
    assert all(same(ours[name], theirs[name]) for name in ours)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 2
    return capsys.readouterr().err
