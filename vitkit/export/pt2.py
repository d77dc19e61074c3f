"""A program of torch.export as a .pt2 file: a zip of JSON and raw tensors, written and opened without pickles."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch.export import ExportedProgram

from vitkit.compute.onnx_session import quietly
from vitkit.data.bounded_read import read_member
from vitkit.errors import WeightsError
from vitkit.export.metadata import EXTRA
from vitkit.stored_json import MOST_BYTES, parse_json

# all that `vitkit export` puts into an archive; torch reads other layouts too, and unpickles what is in them
_ENTRIES = re.compile(
    r"[^/]+/(models/model\.json|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)|data/sample_inputs/model\.pt"
    r"|extra/vitkit\.json|archive_format|archive_version|byteorder|(\.data/)?version"
    r"|\.data/serialization_id)"
)


class _TensorsConfig(TypedDict, total=False):
    config: dict[str, dict[str, Any]]


def write_program(program: ExportedProgram, path: Path, metadata: dict[str, Any]) -> None:
    program.example_inputs = None  # the one thing in the archive that torch would pickle
    with path.open("wb") as file, quietly():
        torch.export.save(program, file, extra_files={EXTRA: json.dumps(metadata)})


def refuse_pickles(path: Path) -> None:
    """Refuse archives with pickles, which torch.export.load would run; `vitkit export` writes none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename
                if (
                    not _ENTRIES.fullmatch(name)
                    or (name.endswith("model.pt") and entry.file_size)
                    or (
                        name.endswith("_config.json")
                        and _pickled(
                            parse_json(read_member(archive, name, MOST_BYTES), _TensorsConfig, name, error=WeightsError)
                        )
                    )
                ):
                    raise WeightsError(
                        f"{path} holds {name}, which could run code when opened.",
                        try_="a file that vitkit export wrote, or torch.export.load if you trust it",
                    )
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{path} is damaged: {error}") from error


def _pickled(config: _TensorsConfig) -> bool:
    return any(entry.get("use_pickle", True) for entry in config.get("config", {}).values())
