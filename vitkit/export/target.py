"""The file that an export writes, and which options of an export go together."""

import os
from pathlib import Path
from typing import get_args

from vitkit.errors import ConfigError
from vitkit.export.write import Format, refuse_existing
from vitkit.weights.bundled import local_path


def pick_target(
    source: str, path: str | os.PathLike[str] | None, to: Format | None, *, int8: bool, overwrite: bool
) -> tuple[Path, Format]:
    """Return the file and its format.

    The format is by default that of the file's name, else ONNX; the file is by default in the run folder, or here.
    """
    suffix = Path("" if path is None else path).suffix.removeprefix(".")
    chosen: Format = to or ("pt2" if suffix == "pt2" else "onnx")
    if chosen not in get_args(Format):
        raise ConfigError(f"to={chosen!r} is not known", choose_from=", ".join(get_args(Format)))
    if int8 and chosen != "onnx":
        raise ConfigError(
            "--int8 needs --to onnx: torch's own quantisation has moved to another package, torchao.",
            try_="--to onnx --int8, or --to pt2 alone",
        )
    target = _run_folder(source) / ("model.int8.onnx" if int8 else f"model.{chosen}") if path is None else Path(path)
    if target.suffix != f".{chosen}":
        raise ConfigError(f"--out {target}: a name that ends in .{chosen} is needed")
    refuse_existing(target, overwrite)
    return target, chosen


def check_int8_options(int8: bool, max_drop: float | None, images: int | None) -> None:
    """Raise an error for options that would be ignored, or are out of range."""
    if not int8 and (max_drop is not None or images is not None):
        raise ConfigError("--max-drop and --images are for --int8")
    if max_drop is not None and not max_drop >= 0:
        raise ConfigError(f"--max-drop {max_drop:g}: 0 or more is needed")
    if images is not None and images < 1:
        raise ConfigError(f"--images {images}: 1 or more is needed")


def _run_folder(source: str) -> Path:
    """Return the folder of a run or of its model.safetensors; the current directory for anything else."""
    path = local_path(source)
    if path and path.is_dir():
        return path
    return path.parent if path and path.name == "model.safetensors" else Path()
