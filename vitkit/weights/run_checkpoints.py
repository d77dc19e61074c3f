"""A run that is not finished: the model as it was at its latest checkpoint, whatever number of processes wrote it.

checkpoints/model.json                what the model is
checkpoints/step-00000062/            safetensors shards of everything that a step changes, and record.json
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from vitkit.errors import WeightsError
from vitkit.weights.formats import Checkpoint

CHECKPOINTS, RECORD, DESCRIPTION = "checkpoints", "record.json", "model.json"
KINDS = ("weights.model.", "average.model.")  # of tensors; where there are averages, they are the better weights


def whole_ones(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / RECORD).is_file()) if folder.is_dir() else []


def latest_step(folder: Path) -> int:
    """That a run goes on from; 0 where it begins."""
    return max((int(path.name.removeprefix("step-")) for path in whole_ones(folder)), default=0)


def latest(folder: Path) -> Path | None:
    """Of a run, of its checkpoints/, or the one checkpoint that the folder is."""
    if (folder / RECORD).is_file() and (folder.parent / DESCRIPTION).is_file():
        return folder
    found = whole_ones(folder) or whole_ones(folder / CHECKPOINTS)
    return found[-1] if found else None


def step_of(checkpoint: Path) -> int:
    try:
        return int(json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{checkpoint / RECORD} is damaged: {error}") from error


def open_unfinished(checkpoint: Path) -> Checkpoint:
    """The model's tensors alone, averaged ones where the run has them."""
    # three quarters of a second, which whoever opens other weights need not wait for
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        record = json.loads((checkpoint.parent / DESCRIPTION).read_text(encoding="utf-8"))
        reader = HuggingFaceStorageReader(str(checkpoint))
        stored = reader.read_metadata().state_dict_metadata
        state: dict[str, Tensor] = {}
        for name, one in stored.items():
            if name.startswith(KINDS) and isinstance(one, TensorStorageMetadata):
                state[name] = torch.empty(one.size, dtype=one.properties.dtype)
        with quietly():
            state_dict_loader.load(state, storage_reader=reader, no_dist=True)
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        raise WeightsError(
            f"{checkpoint} cannot be read: {type(error).__name__}.",
            try_="the checkpoint before it, or vitkit resume, which finishes the run",
        ) from error
    tensors = {
        name.removeprefix(kind): tensor for kind in KINDS for name, tensor in state.items() if name.startswith(kind)
    }
    return Checkpoint(origin=str(checkpoint), tensors=tensors, record=record)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """torch says that one process is not many."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
