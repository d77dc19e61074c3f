"""Open a weights file or folder by its content, without executing it: safetensors, npz, torch state dicts, run folders.

A pickle can hold code. torch reads state dicts with `weights_only`, numpy with `allow_pickle=False`; a file that needs
more than that is refused.
"""

import contextlib
import logging
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitkit.data.bounded_read import TooLarge, check_npz, check_zip
from vitkit.errors import WeightsError
from vitkit.regular_file import open_regular
from vitkit.stored_json import parse_json, read_json
from vitkit.weights.formats import Checkpoint
from vitkit.weights.licence import card_licence, config_licence
from vitkit.weights.native import HEADER
from vitkit.weights.run_checkpoints import latest_checkpoint, load_incomplete_run, step_of

log = logging.getLogger("vitkit")

_WRAPPERS = re.compile(r"^((_orig_mod|module)\.)+")  # prefixes of torch.compile and DataParallel, in any order
# In this order: the safe form before the pickled one.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)


def open_checkpoint(path: Path) -> Checkpoint:
    if path.is_dir():
        return _open_folder(path)
    tensors, header = _open_file(path)
    # the JSON files in the folder of a file with another name may belong to other weights
    folder = path.parent if path.name in WEIGHT_FILES else None
    return _with_records(path, tensors, header, folder, config_name(path.name))


def config_name(weights: str) -> str:
    """Return the name of the configuration that belongs to a weights file; a folder may hold two pairs."""
    return "open_clip_config.json" if weights.startswith("open_clip_") else "config.json"


def _open_folder(folder: Path) -> Checkpoint:
    for name in WEIGHT_FILES:
        path = folder / name
        if path.is_file():
            tensors, header = _open_shards(path) if name.endswith(".index.json") else _open_file(path)
            return _with_records(folder, tensors, header, folder, config_name(name))
    if (checkpoint := latest_checkpoint(folder)) is not None:
        log.warning(
            "%s is an incomplete run; its latest checkpoint is loaded, step %s", folder, f"{step_of(checkpoint):,}"
        )
        return load_incomplete_run(checkpoint)
    entries = sorted(entry.name for entry in folder.iterdir())
    raise WeightsError(
        f"{folder} holds no weights that vitkit can read.",
        looked_for=", ".join(WEIGHT_FILES),
        found=", ".join(entries[:8]) + (" …" if len(entries) > 8 else "") or "an empty folder",
    )


def _with_records(
    origin: Path, tensors: dict[str, Tensor], header: Mapping[str, str], folder: Path | None, config: str
) -> Checkpoint:
    record = _json(folder / "model.json") if folder else None
    in_header = (
        parse_json(header[HEADER], dict[str, Any], f"the header of {origin}", error=WeightsError)
        if HEADER in header
        else None
    )
    if record is not None and in_header is not None and record.get("model") != in_header.get("model"):
        raise WeightsError(
            f"{origin}: model.json describes another model than model.safetensors holds.",
            try_="delete model.json; the header of model.safetensors has the same record",
        )
    record = record or in_header
    settings = (_json(folder / config) if folder else None) or {}
    return Checkpoint(
        origin=str(origin),
        tensors=tensors,
        record=record,
        config=settings,
        preprocessor=_json(folder / "preprocessor_config.json") if folder else None,
        licence=(card_licence(folder) if folder else None) or config_licence(settings),
    )


def _open_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with open_regular(path) as file:  # then libraries open it by its name
            start: bytes = file.read(16)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}.") from error
    if start[8:9] == b"{":  # eight bytes of length, then a JSON header; a length may look like the start of an archive
        return _open_safetensors(path)
    if _is_exported(path, start):
        in_run_folder = any((path.parent / name).is_file() for name in WEIGHT_FILES)
        raise WeightsError(
            f"{path} is an exported model, a program for other runtimes; vitkit loads the weights it was made from.",
            try_=f"{path.parent}, the run folder that holds it"
            if in_run_folder
            else "the run folder or the weights file that it was exported from",
        )
    if start[:2] == b"PK":
        return (_open_npz(path) if _is_npz(path) else _open_torch(path)), {}
    if start[:1] == b"\x80":  # a pickle, as torch wrote before 1.6
        return _open_torch(path), {}
    size = path.stat().st_size
    raise WeightsError(
        f"{path} is not a weights file, or it is truncated.",
        looked_for="safetensors, a numpy .npz or a torch state dict, by content",
        found=f"{size} bytes" + (f" beginning with {start!r}" if size else ""),
    )


def holds_no_code(path: Path) -> bool:
    """Return whether a file is safetensors or an .npz of arrays by its content, whatever its name says."""
    with open_regular(path) as file:
        start: bytes = file.read(16)
    return start[8:9] == b"{" or (start[:2] == b"PK" and _is_npz(path))


def _is_exported(path: Path, start: bytes) -> bool:
    """Return whether the file is a .pt2 of torch.export or an ONNX protobuf, which starts with version and producer."""
    if start[:2] != b"PK":
        return start[:1] == b"\x08" and (start[2:3] == b"\x12" or path.suffix == ".onnx")
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:  # the caller reports a broken archive
        return any(name.split("/")[1:] == ["archive_format"] for name in archive.namelist())
    return False


def _open_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path} is a damaged or truncated safetensors file: {error}.", try_="copy or download it again"
        ) from error


def _open_shards(index: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the shards of a large Hugging Face model, which an index file lists."""
    tensors: dict[str, Tensor] = {}
    for name in shard_names(index):
        tensors |= _open_safetensors(index.parent / name)[0]
    return tensors, {}


def shard_names(index: Path) -> list[str]:
    weight_map = (_json(index) or {}).get("weight_map")
    if not isinstance(weight_map, dict):
        raise WeightsError(f"{index} has no weight_map.")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise WeightsError(f"{index} points outside its folder, to {name!r}.")
    return names


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except Exception as error:
        raise WeightsError(
            f"{path} is a broken or truncated archive: {error}.", try_="copy or download it again"
        ) from error


def _open_npz(path: Path) -> dict[str, Tensor]:
    tensors = {}
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                tensors[name] = torch.from_numpy(archive[name])
    except TooLarge as error:
        raise _too_large(path, error) from error
    except Exception as error:  # damaged bytes raise errors of zlib, struct, numpy or the tokeniser
        raise WeightsError(
            f"{path} is not an npz file of plain arrays: {error}",
            try_="copy or download it again; pickled objects are never loaded",
        ) from error
    return tensors


def _open_torch(path: Path) -> dict[str, Tensor]:
    try:
        if zipfile.is_zipfile(path):
            check_zip(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except TooLarge as error:
        raise _too_large(path, error) from error
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} holds more than tensors: opening it would execute code, so it was not opened.",
            because=_first_line(error),
            try_="save the state dict alone: torch.save(model.state_dict(), …)",
        ) from error
    except Exception as error:  # damaged bytes raise any error
        raise WeightsError(
            f"{path} is a damaged or truncated torch file: {_first_line(error)}", try_="copy or download it again"
        ) from error
    # trainers wrap state dicts: timm and torchvision in "model" or "state_dict", DataParallel and compile in prefixes
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        keys = f" of {', '.join(map(str, list(content)[:8]))}" if isinstance(content, Mapping) else ""
        raise WeightsError(f"{path} is a torch file without a state dict: it holds a {type(content).__name__}{keys}.")
    return {_WRAPPERS.sub("", str(name)): value for name, value in content.items()}


def _too_large(path: Path, error: TooLarge) -> WeightsError:
    return WeightsError(f"{path}: {error}.", try_="save it uncompressed, if these are weights")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _json(path: Path) -> dict[str, Any] | None:
    return read_json(path, dict[str, Any], error=WeightsError) if path.is_file() else None
