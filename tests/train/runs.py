"""Small runs on fashion for tests: in this process, in one that can be killed, or in two with torchrun."""

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
from vitkit.data.loader import Loader
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform
from vitkit.devices import pick_device
from vitkit.run_folder import RunFolder
from vitkit.train import inputs
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
    "cache": "no",
    "shuffle": "full",
}
LONG = 120  # seconds; nothing here takes as long


def toy(out: Path, **settings: Any) -> Fit:
    return Fit(**{"data": "fashion", "out": str(out), **TOY, **settings})


def train_run(
    config: Fit, data: Data = FASHION, print_line: Callable[[str, str], None] = lambda name, text: None
) -> Path:
    """Train without scoring and reporting; a folder with a checkpoint is resumed."""
    folder = RunFolder(Path(config.out))
    folder.path.mkdir(exist_ok=True)
    try:
        train(config, data, folder, Processes(pick_device(config.device)), print_line)
    finally:
        folder.close()
    return folder.path


def metric_lines(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return lines of metrics.jsonl: of these kinds, or all but those that hold times."""
    parsed = [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]
    return [line for line in parsed if (line["kind"] in kinds if kinds else line["kind"] != "speed")]


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in metric_lines(run, "step")]


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model.safetensors")


def states(run: Path) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each checkpoint: weights, moments, EMA."""
    return {
        folder.name: {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        for folder in (run / "checkpoints").glob("step-*")
    }


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether both have the same tensors bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rewind(run: Path, out: Path) -> Path:
    """Copy a finished run as it was at its last checkpoint but one."""
    shutil.copytree(run, out)
    shutil.rmtree(max((out / "checkpoints").glob("step-*")))
    for name in ("model.json", "model.safetensors"):
        (out / name).unlink()
    return out


def command_line(out: Path, verb: str = "fit", data: str = "fashion", **settings: Any) -> list[str]:
    """Return the command line of a toy run."""
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


def poison(monkeypatch: pytest.MonkeyPatch, seed: int, micro_batches: Iterable[int]) -> None:
    """Make the pixels of these micro-batches nan, every time they are loaded."""
    dataset = SplitDataset(
        split=FASHION.splits["train"], transform=TrainTransform(image=(28, 28)), channels=1, seed=seed
    )
    poisoned = [next(iter(Loader(dataset, batch_size=8, start=number))).indices.tolist() for number in micro_batches]

    def spoilt(images: Tensor, indices: Tensor, *rest: Any, **options: Any) -> Tensor:
        return augment(images, indices, *rest, **options) * (math.nan if indices.tolist() in poisoned else 1)

    monkeypatch.setattr(inputs, "augment", spoilt)


class Command:
    """`vitkit ARGUMENTS` in a process of its own, which can be killed; a fork server imports everything once.

    `dies_at` names a function as "module:name" that kills the process with SIGKILL when called for the `after`-th time;
    `file_limit` is the size in bytes past which the system refuses to write a file.
    """

    def __init__(
        self, arguments: list[str], log: Path, *, dies_at: str = "", after: int = 1, file_limit: int | None = None
    ):
        self.log = log
        self.process: BaseProcess = _server().Process(
            target=_command, args=(arguments, str(log), dies_at, after, file_limit)
        )
        self.process.start()

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        self.process.join(LONG)
        assert self.process.exitcode is not None, f"still running: {self.output}"
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def kill_once(self, ready: Callable[[], bool]) -> bool:
        """Kill the process as soon as `ready`; return whether it was still running."""
        deadline = time.monotonic() + LONG
        while not ready() and self.process.is_alive():
            assert time.monotonic() < deadline, f"nothing happens: {self.output}"
            time.sleep(0.002)
        alive = self.process.is_alive()
        self.kill()
        return alive

    @property
    def output(self) -> str:
        return self.log.read_text()


def last_step(run: Path) -> int:
    """Return the last step in the metrics of a run that may still be running."""
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in text.split("\n")[:-1]), default=0)


def start_command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start `vitkit ARGUMENTS` as a shell would."""
    return subprocess.Popen(
        [sys.executable, "-m", "vitkit", *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def start_two(*arguments: str) -> subprocess.Popen[str]:
    """Start `vitkit ARGUMENTS` in two processes."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--standalone",
            "-m",
            "vitkit",
            *arguments,
        ],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `vitkit ARGUMENTS` in two processes to their end."""
    with start_two(*arguments) as started:
        out, error = started.communicate(timeout=LONG)
    return subprocess.CompletedProcess(arguments, started.returncode, out, error)


def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vitkit.run", "tyro", "torch._dynamo"])  # the last for the first optimizer
    return context


def _command(arguments: list[str], log: str, dies_at: str, after: int, file_limit: int | None) -> None:
    from vitkit.cli.main import main

    multiprocessing.set_start_method(
        "fork", force=True
    )  # for data workers: a fork server's child would start another one
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    torch.set_num_threads(1)
    if dies_at:
        _kill_at(dies_at, after)
    if file_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    main(arguments)


def _kill_at(target: str, after: int) -> None:
    module, _, name = target.partition(":")
    calls, function = [], getattr(import_module(module), name)

    def deadly(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    setattr(import_module(module), name, deadly)


def resume(run: Path, log: Path, *options: str) -> None:
    resumed = Command(["resume", str(run), *options], log)
    assert resumed.wait() == 0, resumed.output


def assert_same_end(run: Path, other: Path) -> None:
    """Assert that weights, EMA, moments and metrics are the same bit for bit."""
    assert metric_lines(run) == metric_lines(other)
    assert same_tensors(weights(run), weights(other))
    ours, theirs = states(run), states(other)
    assert ours.keys() == theirs.keys()
    assert all(same_tensors(ours[name], theirs[name]) for name in ours)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err
