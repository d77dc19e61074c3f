"""A model → a file or folder of any of the four formats; what a format cannot hold is refused by name."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from vitkit.atomic import replacing
from vitkit.errors import ConfigError, WeightsError
from vitkit.model.build import Model
from vitkit.weights import google, huggingface, native, timm
from vitkit.weights.registry import FORMATS

Format = Literal["vitkit", "google", "timm", "hf"]

_RECORDS = ("model.json", "config.json", "preprocessor_config.json", "model.safetensors.index.json")

log = logging.getLogger("vitkit")


def save(model: Model, path: str | os.PathLike[str], *, format: Format = "vitkit", lossy: bool = False) -> None:
    """Write a model: "google" takes the name of an .npz, "timm" and "hf" a folder's, "vitkit" a folder or .safetensors.

    Files appear whole or not at all. What the format has no place for is an error that names it; `lossy=True` permits
    what it would merely read back otherwise (a GELU of another kind).
    """
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is not known", choose_from=", ".join(FORMATS))
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    path = Path(path).expanduser()
    _check_losses(model, format, lossy)
    _WRITERS[format](model, path)


def _save_native(model: Model, path: Path) -> None:
    tensors, header = native.tensors_of(model), native.header_of(model)
    if path.suffix == ".safetensors" and path.name != "model.safetensors":
        _write_safetensors(path, tensors, header)
        return
    folder = path.parent if path.name == "model.safetensors" else path
    _prepare_folder(folder, "vitkit")
    _write_safetensors(folder / "model.safetensors", tensors, header)
    _write_json(folder / "model.json", native.record_of(model))


def _save_google(model: Model, path: Path) -> None:
    if path.suffix != ".npz":
        raise WeightsError(f"Google's format is one .npz file; {path} is named otherwise.", try_=f"{path}.npz")
    arrays = {name: tensor.float().numpy() for name, tensor in google.tensors_of(model).items()}
    with replacing(path, WeightsError) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _save_timm(model: Model, path: Path) -> None:
    _prepare_folder(path, "timm")
    _write_safetensors(path / "model.safetensors", timm.tensors_of(model), {"format": "pt"})
    _write_json(path / "config.json", timm.config_of(model))


def _save_huggingface(model: Model, path: Path) -> None:
    _prepare_folder(path, "hf")
    _write_safetensors(path / "model.safetensors", huggingface.tensors_of(model), {"format": "pt"})
    _write_json(path / "config.json", huggingface.config_of(model))
    _write_json(path / "preprocessor_config.json", huggingface.preprocessor_of(model))


_WRITERS: dict[str, Callable[[Model, Path], None]] = {
    "vitkit": _save_native,
    "google": _save_google,
    "timm": _save_timm,
    "hf": _save_huggingface,
}


def _check_losses(model: Model, format: str, lossy: bool) -> None:
    losses = FORMATS[format].losses(model)
    if losses.structure:
        raise WeightsError(
            f"the {format} format cannot hold this model; nothing was written.",
            would_be_lost=losses.structure + losses.answers,
            try_="the vitkit format holds everything",
        )
    if losses.answers and not lossy:
        raise WeightsError(
            f"the {format} format would change this model's answers; nothing was written.",
            would_be_lost=losses.answers,
            try_="lossy=True, on the command line --lossy, writes it all the same",
        )
    for loss in losses.answers + losses.notes:
        log.warning("not kept in the %s format: %s", format, loss)


def _prepare_folder(path: Path, format: str) -> None:
    if path.suffix in (".npz", ".safetensors", ".bin", ".pth", ".pt") or path.is_file():
        better = "format='google' writes .npz files" if path.suffix == ".npz" else f"the folder {path.with_suffix('')}"
        raise WeightsError(f"the {format} format is a folder, {path} names a file.", try_=better)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for record in _RECORDS:  # of the weights that stood here before, perhaps in another format
            (path / record).unlink(missing_ok=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be made: {error.strerror}.") from error


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    with replacing(path, WeightsError) as temporary:
        save_file(dict(tensors), temporary, metadata=header)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path, WeightsError) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
