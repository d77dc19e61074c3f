"""Find the checkpoints of a run and load the model of an incomplete one, however many ranks wrote it.

checkpoints/model.json                the model's config and metadata
checkpoints/step-00000062/            safetensors shards of everything that a step changes, and record.json
"""

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
TENSOR_PREFIXES = ("weights.model.", "average.model.")  # the EMA weights come last and replace the others


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / RECORD).is_file()) if folder.is_dir() else []


def latest_step(folder: Path) -> int:
    """Return the step that a run resumes from, or 0 without a checkpoint."""
    return max((int(path.name.removeprefix("step-")) for path in complete_checkpoints(folder)), default=0)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint of a run folder or of its checkpoints/; a folder that is a checkpoint is its own."""
    if (folder / RECORD).is_file() and (folder.parent / DESCRIPTION).is_file():
        return folder
    complete = complete_checkpoints(folder) or complete_checkpoints(folder / CHECKPOINTS)
    return complete[-1] if complete else None


def step_of(checkpoint: Path) -> int:
    try:
        return int(json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{checkpoint / RECORD} is damaged: {error}") from error


def load_incomplete_run(checkpoint: Path) -> Checkpoint:
    """Read the model's tensors from a checkpoint, the EMA weights where the run keeps them."""
    # imported late: it takes three quarters of a second, which other weights do not need
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        record = json.loads((checkpoint.parent / DESCRIPTION).read_text(encoding="utf-8"))
        storage = HuggingFaceStorageReader(str(checkpoint))
        metadata = storage.read_metadata().state_dict_metadata
        state: dict[str, Tensor] = {}
        for name, entry in metadata.items():
            if name.startswith(TENSOR_PREFIXES) and isinstance(entry, TensorStorageMetadata):
                state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
        with ignore_single_process_warning():
            state_dict_loader.load(state, storage_reader=storage, no_dist=True)
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
