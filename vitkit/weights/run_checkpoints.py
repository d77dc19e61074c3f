"""Find the checkpoints of a run and load the model of an incomplete one, however many ranks wrote it.

checkpoints/model.json                the model's config and metadata
checkpoints/step-00000062/            safetensors shards of everything that a step changes, and record.json
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypedDict

import torch
from safetensors import SafetensorError
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.regular_file import check_regular, open_regular
from vitkit.stored_json import Error, read_json
from vitkit.weights.formats import Checkpoint

if TYPE_CHECKING:  # it takes three quarters of a second, which other weights do not need
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

CHECKPOINTS, RECORD, DESCRIPTION = "checkpoints", "record.json", "model.json"
SAVING, DELETING = ".saving", ".leaving"  # folders beside the checkpoints that are on their way
SEEN_BY_ALL = ".seen-by-all-"  # a file by which the ranks of a run make sure that they share a folder
_NAME = re.compile(r"step-\d{8,18}", re.ASCII)
WEIGHTS = "weights.model."
TENSOR_PREFIXES = (WEIGHTS, "average.model.")  # the EMA weights come last and replace the others


class FileChecksum(TypedDict):
    """The size and CRC-32 of a file of a checkpoint; CRC-32 finds every flipped bit, at some GB per second."""

    bytes: int
    crc32: int


class CheckpointRecord(TypedDict, total=False):
    """The content of record.json: the training state at a step."""

    step: Required[int]
    best: float | None
    best_step: int
    since_best: int
    skipped: list[int]
    stopped: bool
    processes: int
    averaged: int  # steps in the EMA; checkpoints of earlier versions have none
    files: dict[str, FileChecksum]  # checkpoints of earlier versions have none
    crc32: int  # of all other entries


def named_checkpoints(folder: Path) -> list[Path]:
    """Return the folders step-…, oldest first; those with other names are not vitkit's and are left alone."""
    return sorted((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=_step_in_name)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return [path for path in named_checkpoints(folder) if (path / RECORD).is_file()] if folder.is_dir() else []


def _step_in_name(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint of a run folder or of its checkpoints/; a folder that is a checkpoint is its own."""
    if (folder / RECORD).is_file() and (folder.parent / DESCRIPTION).is_file():
        return folder
    complete = complete_checkpoints(folder) or complete_checkpoints(folder / CHECKPOINTS)
    return complete[-1] if complete else None


def read_record(checkpoint: Path, error: Error = WeightsError) -> CheckpointRecord:
    try:
        record: CheckpointRecord = read_json(checkpoint / RECORD, CheckpointRecord, error=error)
    except FileNotFoundError as cause:
        raise error(f"{checkpoint / RECORD} does not exist.") from cause
    if _NAME.fullmatch(checkpoint.name) and record["step"] != _step_in_name(checkpoint):
        raise error(f"{checkpoint / RECORD} is damaged: it is of step {record['step']:,}.")
    if "crc32" in record and record["crc32"] != crc32_of_record(record):
        raise error(f"{checkpoint / RECORD} is damaged: it is not as it was written.")
    return record


def crc32_of_record(record: Mapping[str, Any]) -> int:
    rest = {name: value for name, value in record.items() if name != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def checksum(path: Path) -> FileChecksum:
    size, crc = 0, 0
    with open_regular(path) as file:
        while block := file.read(1 << 22):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return {"bytes": size, "crc32": crc}


def damage(checkpoint: Path, record: CheckpointRecord, rank: int = 0, world_size: int = 1) -> str:
    """Return which file of a checkpoint is not as it was written, or ""; each rank looks at its share of the files."""
    if "files" not in record:
        return ""
    expected = record["files"]
    present = {path.name for path in checkpoint.glob("*.safetensors")} | {DESCRIPTION}
    for name in sorted(expected.keys() | present)[rank::world_size]:
        path = checkpoint.parent / DESCRIPTION if name == DESCRIPTION else checkpoint / name
        try:
            if Path(name).name != name or (name not in expected and name != DESCRIPTION):
                return f"{name} is no file of this checkpoint"
            if name in expected and checksum(path) != expected[name]:
                return f"{name} is not as it was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return ""


def step_of(checkpoint: Path) -> int:
    return read_record(checkpoint)["step"]


def open_storage(checkpoint: Path) -> HuggingFaceStorageReader:
    """Return torch's reader of a checkpoint; it opens every file by its name, and would wait for a pipe."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    for path in checkpoint.glob("*.safetensors"):
        check_regular(path)
    return HuggingFaceStorageReader(str(checkpoint))


def stored_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a checkpoint, from the headers of its files."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        metadata = open_storage(checkpoint).read_metadata().state_dict_metadata
    except Exception as error:  # damaged headers raise any error
        raise WeightsError(f"{checkpoint} cannot be read: {type(error).__name__}.") from error
    return {name: tuple(entry.size) for name, entry in metadata.items() if isinstance(entry, TensorStorageMetadata)}


def load_incomplete_run(checkpoint: Path) -> Checkpoint:
    """Read the model's tensors from a checkpoint, the EMA weights where the run keeps them."""
    # imported late: it takes three quarters of a second, which other weights do not need
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        if problem := damage(checkpoint, read_record(checkpoint)):
            raise WeightsError(
                f"{checkpoint} cannot be read: it is damaged, {problem}.",
                try_="an earlier checkpoint, or vitkit resume, which completes the run",
            )
        record = read_json(checkpoint.parent / DESCRIPTION, dict[str, Any], error=WeightsError)
        storage = open_storage(checkpoint)
        metadata = storage.read_metadata().state_dict_metadata
        state: dict[str, Tensor] = {}
        for name, entry in metadata.items():
            if name.startswith(TENSOR_PREFIXES) and isinstance(entry, TensorStorageMetadata):
                state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
        with ignore_single_process_warning():
            state_dict_loader.load(state, storage_reader=storage, no_dist=True)
    except WeightsError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        raise WeightsError(
            f"{checkpoint} cannot be read: {type(error).__name__}.",
            try_="an earlier checkpoint, or vitkit resume, which completes the run",
        ) from error
    tensors = {
        name.removeprefix(prefix): tensor
        for prefix in TENSOR_PREFIXES
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
    return Checkpoint(origin=str(checkpoint), tensors=tensors, record=record)


@contextlib.contextmanager
def ignore_single_process_warning() -> Iterator[None]:
    """Ignore torch's warning that torch.distributed is off, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
