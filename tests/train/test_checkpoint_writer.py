"""Checkpoints are written beside training: the state of their step, one at a time, within their share of the time."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.train.runs import (
    assert_same_end,
    last_step,
    metric_lines,
    poison,
    same_tensors,
    states,
    toy,
    train_run,
    weights,
)
from vitkit.config.schema import AdamW
from vitkit.run_folder import RunError, RunFolder
from vitkit.train import checkpoint
from vitkit.train.checkpoint_staging import own_tensors
from vitkit.train.checkpoint_writer import CheckpointWriter, SaveCost
from vitkit.train.distributed import Processes
from vitkit.train.save_schedule import MOST_SHARE, SaveSchedule

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = Processes(torch.device("cpu"))


class Gate:
    """A writer's disk that can be made to wait: a shard is written while the gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.open, self.reached = threading.Event(), threading.Event()
        monkeypatch.setattr(checkpoint, "save_file", self._save_file)

    def _save_file(self, *arguments: Any, **options: Any) -> None:
        self.reached.set()
        assert self.open.wait(60)
        save_file(*arguments, **options)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def shard(folder: Path, step: int) -> dict[str, Tensor]:
    (file,) = (folder / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")
    return load_file(file)


def writer_of(folder: Path, state: dict[str, Tensor]) -> CheckpointWriter:
    return CheckpointWriter(RunFolder(folder), CPU, lambda: state)


# One write


def test_a_checkpoint_has_the_state_of_its_step_however_late_it_is_written(gate: Gate, tmp_path: Path):
    state = {
        "plain": torch.randn(7, 5),
        "scalar": torch.tensor(3.0),
        "transposed": torch.randn(4, 6).t(),
        "half": torch.randn(9).bfloat16(),
    }
    expected = {name: tensor.clone() for name, tensor in state.items()}
    with writer_of(tmp_path, state) as writer:
        writer.save({"step": 4})
        assert gate.reached.wait(60)
        assert writer.busy
        for tensor in state.values():
            tensor.mul_(-1).add_(1)  # as a step does, in place
        gate.open.set()
    assert same_tensors(shard(tmp_path, 4), expected)


def test_one_copy_is_in_flight_and_its_memory_is_used_again(gate: Gate, tmp_path: Path):
    state, addresses = {"weight": torch.zeros(1000)}, []
    with writer_of(tmp_path, state) as writer:
        for step in range(3):
            state["weight"].fill_(step)
            threading.Timer(0.05, gate.open.set).start()
            writer.save({"step": step})  # waits for the write before
            addresses.append([tensor.data_ptr() for tensor in writer._staging._buffers.values()])
            if step:
                assert shard(tmp_path, step - 1)["weight"].eq(step - 1).all()
    assert addresses[0] == addresses[1] == addresses[2]
    assert writer.written == 3
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000001", "step-00000002"]


def test_waiting_for_a_write_is_counted_and_training_beside_it_is_not(gate: Gate, tmp_path: Path):
    with writer_of(tmp_path, {"weight": torch.zeros(10)}) as writer:
        writer.save({"step": 1})
        assert gate.reached.wait(60)
        time.sleep(0.3)  # steps, during which the write is in flight
        before = writer.waited
        threading.Timer(0.3, gate.open.set).start()
        began = time.perf_counter()
        writer.wait()
        assert 0.2 < writer.waited - before <= time.perf_counter() - began
        assert before < 0.2


def test_a_write_that_fails_is_raised_by_the_next_call_and_leaves_the_checkpoint_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with writer_of(tmp_path, {"weight": torch.zeros(10)}) as writer:
        writer.save({"step": 1})
        writer.wait()
        monkeypatch.setattr(checkpoint, "save_file", full)
        writer.save({"step": 2})
        while writer.busy:
            time.sleep(0.01)
        assert writer.failed
        with pytest.raises(RunError, match=r"checkpoint of step 2 cannot be written to .*: No space left on device"):
            writer.save({"step": 3})
        assert not writer.failed
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000001"]


@given(
    sizes=st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(0, 100), max_size=30),
    world_size=st.integers(1, 5),
)
def test_every_tensor_is_written_by_one_rank_and_ranks_write_about_as_much(sizes: dict[str, int], world_size: int):
    state = {name: torch.zeros(size) for name, size in sizes.items()}
    shares = [own_tensors(state, rank, world_size) for rank in range(world_size)]
    assert sorted(name for share in shares for name in share) == sorted(state)
    bytes_written = [sum(tensor.nbytes for tensor in share.values()) for share in shares]
    assert max(bytes_written) - min(bytes_written) <= 4 * max(sizes.values(), default=0)


# Runs


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that writes a checkpoint after every step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    run = train_run(toy(tmp_path_factory.mktemp("expected") / "run", **SETTINGS, save_every=1))
    torch.set_num_threads(before)
    return run


SETTINGS: dict[str, Any] = {"steps": 9, "lr": 0.01, "average": 0.9, "optimizer": AdamW(), "dropout": 0.1}


@pytest.mark.parametrize("every", [4, 100, None])
def test_the_times_of_checkpoints_do_not_change_the_weights(every: int | None, expected: Path, tmp_path: Path):
    run = train_run(toy(tmp_path / "run", **SETTINGS, save_every=every))
    assert same_tensors(weights(run), weights(expected))
    assert metric_lines(run) == metric_lines(expected)
    saved = {4: ["step-00000008", "step-00000009"], 100: ["step-00000000", "step-00000009"]}
    if every is not None:
        assert sorted(states(run)) == saved[every]
    assert states(run).keys() >= {"step-00000000"} or every == 4


def test_a_run_says_and_records_how_long_it_waited_for_checkpoints(tmp_path: Path):
    said: list[tuple[str, str]] = []
    run = train_run(toy(tmp_path / "run", steps=4, save_every=2), print_line=lambda *line: said.append(line))
    (text,) = [text for label, text in said if label == "saved"]
    record = json.loads((run / "run.json").read_text())["checkpoint_wait"]
    assert record["written"] == 3
    assert 0 < record["share"] < 1
    assert text.startswith(f"3 checkpoints while training went on; it waited {record['seconds']:.1f} s for them, ")
    assert text.endswith(f"{100 * record['share']:.1f} % of its time")
    assert all(0 <= line["checkpoint_wait"] < 1 for line in metric_lines(run, "speed"))


def test_steps_that_were_logged_before_the_first_checkpoint_was_complete_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, expected: Path, tmp_path: Path
):
    run = tmp_path / "run"

    def full(*arguments: Any, **options: Any) -> None:
        wait_until(lambda: last_step(run) >= 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full)
        with pytest.raises(RunError, match="checkpoint of step 0 cannot be written"):
            train_run(toy(run, **SETTINGS))
    assert last_step(run) >= 2
    assert not states(run)
    train_run(toy(run, **SETTINGS, save_every=1))
    assert_same_end(run, expected)


def test_a_roll_back_waits_for_the_checkpoint_that_is_being_written(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    poison(monkeypatch, 0, [5])  # the third step
    threading.Thread(target=lambda: wait_until(lambda: last_step(tmp_path / "run") >= 2) or gate.open.set()).start()
    run = train_run(toy(tmp_path / "run", steps=6, save_every=6))
    assert [(line["step"], line["to"]) for line in metric_lines(run, "rolled-back")] == [(3, 0)]


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# The schedule


class TimedWriter:
    """A writer that takes given times instead of writing."""

    def __init__(self, cost: SaveCost):
        self.cost, self.waited, self.processor, self.saves = cost, 0.0, 0.0, 0
        self.done = 0.0  # when the write in flight will be complete
        self.now = 0.0

    @property
    def busy(self) -> bool:
        return self.now < self.done

    def expected_cost(self) -> SaveCost:
        return self.cost

    def wait(self) -> None:
        self.waited += max(self.done - self.now, 0.0)
        self.now = max(self.done, self.now)

    def save(self) -> None:
        self.wait()
        self.now += self.cost.copying
        self.waited += self.cost.copying
        self.processor += self.cost.processor
        self.done = self.now + self.cost.writing
        self.saves += 1


def simulate(every: int | None, cost: SaveCost, steps: int, seconds: float) -> TimedWriter:
    """Run the clock of a run whose steps all take as long."""
    writer: Any = TimedWriter(cost)
    schedule = SaveSchedule(every, 0.0)
    writer.save()
    for step in range(1, steps + 1):
        writer.now += seconds
        last = step == steps
        due = schedule.at_step(step) or schedule.at_time(writer.now, writer, (steps - step) / steps)
        if due or (last and schedule.at_end(writer.now, writer)):
            writer.save()
            schedule.last = writer.now
    writer.wait()
    return writer  # type: ignore[no-any-return]


@settings(max_examples=200, deadline=None)
@given(
    copying=st.floats(0, 5),
    writing=st.floats(0, 60),
    processor=st.floats(0, 1),
    steps=st.integers(1, 400),
    seconds=st.floats(0.01, 30),
)
def test_by_time_checkpoints_take_three_percent_of_a_run_at_most(
    copying: float, writing: float, processor: float, steps: int, seconds: float
):
    """The first one, of the state before any step, is always written; a run shorter than that has to wait for it."""
    cost = SaveCost(copying=copying, processor=processor * writing, writing=writing)
    writer = simulate(None, cost, steps, seconds)
    first = copying + max(writing - steps * seconds, 0.0)
    assert writer.waited <= max(MOST_SHARE * writer.now, first) + 1e-6


def test_a_short_run_writes_few_checkpoints_and_a_long_one_every_ten_minutes():
    cheap = SaveCost(copying=0.1, processor=0.5, writing=1.0)
    assert simulate(None, cheap, steps=59, seconds=1.0).saves == 2  # 0.6 s for the first, 1.1 s for the last: 2.9 %
    assert simulate(None, cheap, steps=50, seconds=1.0).saves == 1  # both would be 3.4 %
    hour = simulate(None, cheap, steps=3600, seconds=1.0)
    assert 10 <= hour.saves <= 40
    day = simulate(None, cheap, steps=24 * 360, seconds=10.0)
    assert 24 * 6 - 10 <= day.saves <= 24 * 6 + 40


def test_a_number_of_steps_is_exact():
    dear = SaveCost(copying=3.0, processor=1.0, writing=7.0)
    assert simulate(5, dear, steps=22, seconds=1.0).saves == 1 + 4 + 1
