"""States to resume from: safetensors shards that any number of processes can read, and a record of where the run was.

A checkpoint is written beside its place and renamed into it, and one that goes is renamed first, so that a kill at any
moment leaves whole ones only.
torch's distributed checkpoint does the sharding; its storage for Hugging Face is the one that writes no pickle.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from vitkit.atomic import write_text
from vitkit.run_folder import RunError
from vitkit.train.distributed import Processes
from vitkit.train.ema import EMA
from vitkit.weights.run_checkpoints import RECORD, quietly

SAVING, LEAVING = ".saving", ".leaving"
DISK_LAG = 30.0  # seconds that a network's disk may take to show a file


def state_of(objective: nn.Module, optimizer: torch.optim.Optimizer, average: EMA | None) -> dict[str, Tensor]:
    """Everything that a step changes, by name; the tensors themselves, so that loading into them is resuming."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in objective.named_parameters()}
    state = {f"weights.{name}": parameter.detach() for parameter, name in names.items()}
    for parameter, slots in optimizer.state.items():
        for slot, tensor in slots.items():
            if isinstance(tensor, Tensor):  # SGD keeps a None before its first step
                state[f"optimizer.{slot}.{names[parameter]}"] = tensor
    if average is not None:
        state.update({f"average.{name}": tensor for name, tensor in average.state().items()})
    return state


def check_shared(folder: Path, processes: Processes) -> None:
    """Each process writes its part of a checkpoint: the run folder has to be one for all of them."""
    if processes.world_size == 1:
        return
    mark = folder / f".seen-by-all-{processes.broadcast(uuid.uuid4().hex)}"
    if processes.first:
        mark.touch()
    processes.barrier()
    until = time.monotonic() + DISK_LAG
    while not (seen := mark.exists()) and time.monotonic() < until:
        time.sleep(0.2)
    blind = [rank for rank, sees in enumerate(processes.everyones(seen)) if not sees]
    if processes.first:
        mark.unlink(missing_ok=True)
    if blind:
        raise RunError(
            f"{folder} is not the same folder for all processes: process{'es' * (len(blind) > 1)} "
            f"{', '.join(map(str, blind))} of {processes.world_size} cannot see what the first has written.",
            try_="--out on a disk that all machines share, as a path that means the same on each",
        )


def save(folder: Path, state: dict[str, Tensor], record: dict[str, Any], processes: Processes) -> Path:
    """`folder`/step-… from all processes together."""
    saving, target = folder / SAVING, folder / f"step-{record['step']:08d}"
    try:
        if processes.first:
            shutil.rmtree(saving, ignore_errors=True)
            saving.mkdir(parents=True)
        processes.barrier()
        with quietly():
            state_dict_saver.save(
                state,
                storage_writer=HuggingFaceStorageWriter(str(saving), save_distributed=True),
                no_dist=processes.world_size == 1,
            )
        if processes.first:
            write_record(saving, record)
            _remove(target)  # of the same step, before a roll-back
            saving.rename(target)
            _sync(folder)
        processes.barrier()
    except (OSError, RunError, CheckpointException) as error:
        raise RunError(
            f"the checkpoint of step {record['step']} cannot be written to {folder}: {_cause(error)}.",
            kept="the checkpoints before it are whole",
            then=f"make room, and vitkit resume {folder.parent}",
        ) from error
    return target


def load(
    checkpoint: Path,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: EMA | None,
    processes: Processes,
) -> dict[str, Any]:
    """Into the objective, the optimizer and the average, in place, whatever number of processes wrote it."""
    try:
        stored = HuggingFaceStorageReader(str(checkpoint)).read_metadata().state_dict_metadata
        _make_slots(objective, optimizer, stored)
        state = state_of(objective, optimizer, average)
        lacking = sorted(state.keys() ^ stored.keys())
        if lacking:
            raise RunError(
                f"{checkpoint} is of another model: {len(lacking)} tensors do not pair.", such_as=lacking[:4]
            )
        with quietly():
            state_dict_loader.load(
                state, storage_reader=HuggingFaceStorageReader(str(checkpoint)), no_dist=processes.world_size == 1
            )
        return read_record(checkpoint)
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{checkpoint} cannot be read: {_cause(error)}.", try_="remove it, and resume from the one before it"
        ) from error


def write_record(checkpoint: Path, record: dict[str, Any]) -> None:
    write_text(checkpoint / RECORD, json.dumps(record, indent=2) + "\n", RunError)


def read_record(checkpoint: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))
    return record


def keep_only(folder: Path, steps: Iterable[int]) -> None:
    kept = {f"step-{step:08d}" for step in steps}
    for path in folder.glob("step-*"):
        if path.name not in kept:
            _remove(path)


def _remove(checkpoint: Path) -> None:
    leaving = checkpoint.with_name(LEAVING)
    shutil.rmtree(leaving, ignore_errors=True)  # that a kill has left there
    with contextlib.suppress(OSError):  # one that stays takes room, and is in nobody's way
        checkpoint.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def _make_slots(objective: nn.Module, optimizer: torch.optim.Optimizer, stored: dict[str, Any]) -> None:
    """Optimizers make their moments at the first step; here they are needed before it, or again not at all."""
    optimizer.state.clear()
    parameters = dict(objective.named_parameters())
    for key in stored:
        kind, _, rest = key.partition(".")
        if kind != "optimizer":
            continue
        slot, _, name = rest.partition(".")
        if name not in parameters:
            continue  # told with everything else that does not pair
        parameter = parameters[name]
        scalar = not len(stored[key].size) and parameter.ndim > 0
        optimizer.state[parameter][slot] = (
            torch.zeros((), device=parameter.device if _on_device(optimizer) else "cpu")
            if scalar
            else torch.zeros_like(parameter, memory_format=torch.preserve_format)
        )


def _on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Fused kernels count their steps on the device, the others on the host."""
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)


def _sync(folder: Path) -> None:
    if os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cause(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        error = next((failure for failure, _ in error.failures.values()), error)
    if isinstance(error, RunError):
        error = error.__cause__ or error
    reason = getattr(error, "strerror", None) or str(error)
    return reason.splitlines()[0] if reason else type(error).__name__
