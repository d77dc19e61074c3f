"""Save a model to a file or folder of any of the four formats; what a format cannot hold is refused by name."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from vitkit.atomic import replacing, temporary_folder
from vitkit.errors import ConfigError, WeightsError
from vitkit.model.build import Model
from vitkit.weights import clip, google, huggingface, imagegpt, native, siglip, timm_known, timm_write
from vitkit.weights.formats import ConversionLosses

Format = Literal["vitkit", "google", "timm", "hf"]

_RECORDS = ("model.json", "config.json", "preprocessor_config.json", "model.safetensors.index.json")

log = logging.getLogger("vitkit")


def save(model: Model, path: str | os.PathLike[str], *, format: Format = "vitkit", lossy: bool = False) -> None:
    """Write a model: "google" to an .npz file, "timm" and "hf" to a folder, "vitkit" to a folder or .safetensors file.

    The same model gives the same bytes, and files appear complete or not at all. What the format cannot hold is an
    error that names it; `lossy=True` permits what would only change the logits (another kind of GELU).
    """
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is not known", choose_from=", ".join(FORMATS))
    model = getattr(model, "_orig_mod", model)  # torch.compile wraps the model
    path = Path(path).expanduser()
    conversion_losses, write = FORMATS[format]
    _check_losses(conversion_losses(model), format, lossy)
    write(model, path)


def _save_native(model: Model, path: Path) -> None:
    tensors, metadata = native.tensors_of(model), native.header_of(model)
    if path.suffix == ".safetensors" and path.name != "model.safetensors":
        _write_safetensors(path, tensors, metadata)
        return
    folder = path.parent if path.name == "model.safetensors" else path
    _prepare_folder(folder, "vitkit")
    _write_safetensors(folder / "model.safetensors", tensors, metadata)
    _write_json(folder / "model.json", native.record_of(model))


def _save_google(model: Model, path: Path) -> None:
    if path.suffix != ".npz":
        raise WeightsError(f"Google's format is one .npz file; {path} has another suffix.", try_=f"{path}.npz")
    arrays = {name: tensor.float().numpy() for name, tensor in google.tensors_of(model).items()}
    with replacing(path, WeightsError) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _save_timm(model: Model, path: Path) -> None:
    tensors = timm_write.tensors_of(model)
    _prepare_folder(path, "timm")
    _write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    _write_json(path / "config.json", timm_write.config_of(model))


def _save_huggingface(model: Model, path: Path) -> None:
    family = _huggingface_family(model)
    tensors = family.tensors_of(model)
    _prepare_folder(path, "hf")
    _write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    _write_json(path / "config.json", family.config_of(model))
    _write_json(path / "preprocessor_config.json", family.preprocessor_of(model))


def _huggingface_family(model: Model) -> ModuleType:
    """Return the module of the model of transformers that is most like this one; its losses say what still differs."""
    return next((family for family in (clip, siglip, imagegpt) if family.holds(model.config)), huggingface)


def _huggingface_losses(model: Model) -> ConversionLosses:
    losses: ConversionLosses = _huggingface_family(model).conversion_losses(model)
    return losses


FORMATS: dict[str, tuple[Callable[[Model], ConversionLosses], Callable[[Model, Path], None]]] = {
    "vitkit": (native.conversion_losses, _save_native),
    "google": (google.conversion_losses, _save_google),
    "timm": (timm_known.conversion_losses, _save_timm),
    "hf": (_huggingface_losses, _save_huggingface),
}


def _check_losses(losses: ConversionLosses, format: str, lossy: bool) -> None:
    if losses.unsupported:
        raise WeightsError(
            f"the {format} format cannot hold this model; nothing was written.",
            would_be_lost=losses.unsupported + losses.changed,
            try_="the vitkit format holds everything",
        )
    if losses.changed and not lossy:
        raise WeightsError(
            f"the {format} format would change this model's logits; nothing was written.",
            would_be_lost=losses.changed,
            try_="lossy=True, on the command line --lossy, to write it anyway",
        )
    for loss in losses.changed + losses.dropped:
        log.warning("not kept in the %s format: %s", format, loss)


def _prepare_folder(path: Path, format: str) -> None:
    if path.suffix in (".npz", ".safetensors", ".bin", ".pth", ".pt") or path.is_file():
        better = "format='google' writes .npz files" if path.suffix == ".npz" else f"the folder {path.with_suffix('')}"
        raise WeightsError(f"the {format} format is a folder, but {path} is the name of a file.", try_=better)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for record in _RECORDS:  # of the weights that are overwritten, perhaps in another format
            (path / record).unlink(missing_ok=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be created: {error.strerror}.") from error


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    # in a folder of its own: the library writes a temporary file beside its target, which a kill would leave there
    with replacing(path, WeightsError) as temporary, temporary_folder(path.parent) as folder:
        written = folder / path.name
        save_file(dict(tensors), written, metadata=metadata)
        _sort_metadata(written)
        written.replace(temporary)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata in the header of a safetensors file in place, so that the same model gives the same bytes.

    The library keeps metadata in a Rust HashMap, whose order differs from write to write; it sorts the tensors itself.
    """
    with path.open("rb+") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:  # the tensors follow at once: a longer header would overwrite them
            raise WeightsError(f"{path}: the sorted header has {len(text)} bytes instead of {length}.")
        file.seek(8)
        file.write(text.ljust(length))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path, WeightsError) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
