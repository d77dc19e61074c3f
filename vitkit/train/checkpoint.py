"""Checkpoints: safetensors shards that any number of processes can load, and a record of the training state.

A checkpoint is written to a temporary folder and renamed, and renamed before it is deleted, so that a kill at any
moment leaves complete checkpoints only. torch's distributed checkpoint loads it for any number of processes, through
its Hugging Face storage, which has no pickle.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from vitkit.atomic import replacing, write_text
from vitkit.errors import VitkitError
from vitkit.model.batch_norm import running_statistics
from vitkit.run_folder import RunError
from vitkit.stored_json import conform
from vitkit.torch_private import SAVED_OFFSETS, SHARDING_INFO
from vitkit.train.checkpoint_staging import StagedState
from vitkit.train.distributed import Processes
from vitkit.train.ema import EMA
from vitkit.weights.run_checkpoints import (
    DELETING,
    DESCRIPTION,
    RECORD,
    SAVING,
    SEEN_BY_ALL,
    CheckpointRecord,
    FileChecksum,
    checksum,
    complete_checkpoints,
    crc32_of_record,
    damage,
    ignore_single_process_warning,
    named_checkpoints,
    open_storage,
    read_record,
)

SHARD = "shard-{:05d}-model-00001-of-00001.safetensors"  # of a rank; the name that torch gives it
DISK_LAG = 30.0  # seconds that a network file system may take to show a file


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The progress of a run: with the tensors of a checkpoint, all that resuming needs."""

    step: int = 0  # finished
    best: float = -math.inf  # validation score
    best_step: int = 0
    since_best: int = 0  # validations
    skipped: tuple[int, ...] = ()  # steps whose loss or gradient was not finite
    stopped: bool = False  # early

    @classmethod
    def from_record(cls, record: CheckpointRecord) -> TrainState:
        best = record.get("best")
        values = {**record, "best": -math.inf if best is None else best}
        state: TrainState = conform(values, cls, f"the {RECORD} of step {record['step']}", error=RunError)
        return state

    def to_record(self) -> dict[str, Any]:
        """Return the state as JSON data, which has no infinity."""
        return {**asdict(self), "best": None if math.isinf(self.best) else self.best}

    def after_validation(self, score: float, patience: int) -> TrainState:
        """Return the state with the best score and early stopping updated; patience 0 never stops."""
        if score > self.best:
            return replace(self, best=score, best_step=self.step, since_best=0)
        since_best = self.since_best + 1
        return replace(self, since_best=since_best, stopped=self.stopped or 0 < patience <= since_best)


def state_of(objective: nn.Module, optimizer: torch.optim.Optimizer, ema: EMA | None) -> dict[str, Tensor]:
    """Return every tensor that a step changes, by name; not copies, so that a checkpoint is loaded into them."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in objective.named_parameters()}
    state = {f"weights.{name}": parameter.detach() for parameter, name in names.items()}
    state.update({f"weights.{name}": tensor for name, tensor in running_statistics(objective).items()})
    for parameter, slots in optimizer.state.items():
        for slot, tensor in slots.items():
            if isinstance(tensor, Tensor):  # SGD keeps a None before its first step
                state[f"optimizer.{slot}.{names[parameter]}"] = tensor
    if ema is not None:
        state.update({f"average.{name}": tensor for name, tensor in ema.state().items()})
    return state


def check_folder_shared(folder: Path, processes: Processes) -> None:
    """Raise unless all ranks see the same run folder, for each writes its shards of a checkpoint."""
    if processes.world_size == 1:
        return
    marker = folder / f"{SEEN_BY_ALL}{processes.broadcast(uuid.uuid4().hex)}"
    if processes.is_rank_zero:
        marker.touch()
    processes.barrier()
    until = time.monotonic() + DISK_LAG
    while not (visible := marker.exists()) and time.monotonic() < until:
        time.sleep(0.2)
    blind = [rank for rank, sees in enumerate(processes.gather(visible)) if not sees]
    if processes.is_rank_zero:
        marker.unlink(missing_ok=True)
    if blind:
        raise RunError(
            f"{folder} is not the same folder for all processes: rank{'s' * (len(blind) > 1)} "
            f"{', '.join(map(str, blind))} of {processes.world_size} cannot see a file that rank 0 has written.",
            try_="--out on a file system that all machines share, under the same path on each",
        )


def write(folder: Path, staged: StagedState, record: dict[str, Any], processes: Processes) -> Path:
    """Write `folder`/step-… from all ranks together and return its path."""
    saving, target = folder / SAVING, folder / f"step-{record['step']:08d}"
    try:
        processes.on_rank_zero(lambda: _make_empty(saving))
        own = processes.all_or_raise(lambda: _write_files(saving, staged, processes))
        files = {name: entry for entries in processes.gather(own) for name, entry in entries.items()}
        processes.on_rank_zero(lambda: _complete(saving, target, {**record, "files": files}))
    except VitkitError as error:
        raise RunError(
            f"the checkpoint of step {record['step']} cannot be written to {folder}: {_cause(error)}.",
            kept="the earlier checkpoints are complete",
            then=f"free disk space, then vitkit resume {folder.parent}",
        ) from error
    return target


@contextlib.contextmanager
def _as_run_error() -> Iterator[None]:
    """Raise what a disk refuses as an error that reaches all ranks."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(_cause(error)) from error


@_as_run_error()
def _make_empty(saving: Path) -> None:
    shutil.rmtree(saving, ignore_errors=True)
    saving.mkdir(parents=True)


@_as_run_error()
def _write_files(saving: Path, staged: StagedState, processes: Processes) -> dict[str, FileChecksum]:
    """Write the shard of this rank and return the checksums of its files; rank zero's include the model's config."""
    own = {}
    if staged.tensors:
        path = saving / SHARD.format(processes.rank + 1)
        offsets = {name: {SAVED_OFFSETS: list(start)} for name, start in staged.offsets.items()}
        with replacing(path, RunError) as temporary:
            save_file(dict(staged.tensors), temporary, metadata={SHARDING_INFO: json.dumps(offsets), "format": "pt"})
        own[path.name] = checksum(path)
    if processes.is_rank_zero and (description := saving.parent / DESCRIPTION).is_file():
        own[DESCRIPTION] = checksum(description)
    return own


@_as_run_error()
def _complete(saving: Path, target: Path, record: dict[str, Any]) -> None:
    """Write the record and give the checkpoint its name."""
    write_record(saving, record)
    _remove(target)  # from the same step before a roll-back
    saving.rename(target)
    _sync(target.parent)


def intact_checkpoint(folder: Path, processes: Processes) -> tuple[Path, list[str]]:
    """Return the latest checkpoint whose files are as they were written, and a warning for each later one."""
    others = sorted(set(folder.glob("step-*")) - set(named_checkpoints(folder)))
    warnings = [f"{path} has no name of a checkpoint; it is left alone" for path in others]
    for path in reversed(complete_checkpoints(folder)):
        try:
            problem = damage(path, read_record(path, RunError), processes.rank, processes.world_size)
        except RunError as error:
            problem = error.what
        if not (problems := [text for text in processes.gather(problem) if text]):
            return path, warnings
        warnings.append(f"{path} is damaged ({problems[0]}): the checkpoint before it is used")
    raise RunError(
        f"no checkpoint in {folder} is as it was written.",
        found=warnings,
        try_="a copy of the run folder, if there is one, or a new run",
    )


def load(
    checkpoint: Path,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: EMA | None,
    processes: Processes,
) -> CheckpointRecord:
    """Load a checkpoint, written by any number of ranks, into objective, optimizer and EMA; return its record."""
    from torch.distributed.checkpoint import state_dict_loader  # late: it takes most of a second
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        stored = open_storage(checkpoint).read_metadata().state_dict_metadata
        _make_slots(objective, optimizer, stored)
        state = state_of(objective, optimizer, ema)
        unmatched = sorted(state.keys() ^ stored.keys())
        if unmatched:
            raise RunError(
                f"{checkpoint} is of another model: {len(unmatched)} tensors do not match.", such_as=unmatched[:4]
            )
        with ignore_single_process_warning():
            state_dict_loader.load(state, storage_reader=open_storage(checkpoint), no_dist=processes.world_size == 1)
        return read_record(checkpoint, RunError)
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{checkpoint} cannot be read: {_cause(error)}.", try_="remove it to resume from the previous checkpoint"
        ) from error


def averaged_steps(record: CheckpointRecord) -> int:
    """Return how many steps the EMA of a checkpoint holds; earlier versions did not record it."""
    done = record["step"] - sum(step < record["step"] for step in record.get("skipped", ()))
    averaged = record.get("averaged", done)
    if averaged != done:
        raise RunError(f"the {RECORD} of step {record['step']} is damaged: averaged should be {done}, not {averaged}.")
    return averaged


def write_record(checkpoint: Path, record: dict[str, Any]) -> None:
    text = json.dumps({**record, "crc32": crc32_of_record(record)}, indent=2)
    write_text(checkpoint / RECORD, text + "\n", RunError)


def keep_latest(folder: Path, step: int, kept: Iterable[int]) -> None:
    """Delete all checkpoints but the two latest ones up to a step and those of the steps in `kept`."""
    steps = [int(path.name.removeprefix("step-")) for path in complete_checkpoints(folder)]
    keep_only(folder, [*kept, *[one for one in steps if one <= step][-2:]])


def keep_only(folder: Path, steps: Iterable[int]) -> None:
    kept = {f"step-{step:08d}" for step in steps}
    for path in named_checkpoints(folder):
        if path.name not in kept:
            _remove(path)


def _remove(checkpoint: Path) -> None:
    deleting = checkpoint.with_name(DELETING)
    shutil.rmtree(deleting, ignore_errors=True)  # left by a killed process
    with contextlib.suppress(OSError):  # one that cannot be deleted takes space, but does no harm
        checkpoint.rename(deleting)
        shutil.rmtree(deleting, ignore_errors=True)


def _make_slots(objective: nn.Module, optimizer: torch.optim.Optimizer, stored: dict[str, Any]) -> None:
    """Create the optimizer state that the checkpoint has, which torch creates in the first step only."""
    optimizer.state.clear()
    parameters = dict(objective.named_parameters())
    for key in stored:
        kind, _, rest = key.partition(".")
        if kind != "optimizer":
            continue
        slot, _, name = rest.partition(".")
        if name not in parameters:
            continue  # reported with the other unmatched tensors
        parameter = parameters[name]
        scalar = not len(stored[key].size) and parameter.ndim > 0
        optimizer.state[parameter][slot] = (
            torch.zeros((), device=parameter.device if _on_device(optimizer) else "cpu")
            if scalar
            else torch.zeros_like(parameter, memory_format=torch.preserve_format)
        )


def _on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer counts its steps on the device, as fused ones do."""
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)


def _sync(folder: Path) -> None:
    if os.name == "nt":  # which cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cause(error: BaseException) -> str:
    from torch.distributed.checkpoint.api import CheckpointException

    if isinstance(error, CheckpointException):
        error = next((failure for failure, _ in error.failures.values()), error)
    if isinstance(error, RunError):
        error = error.__cause__ or error
    if isinstance(error, SafetensorError) and (number := re.search(r"\(os error (\d+)\)", str(error))):
        return os.strerror(int(number[1]))
    reason = getattr(error, "strerror", None) or str(error)
    return reason.splitlines()[0] if reason else type(error).__name__
