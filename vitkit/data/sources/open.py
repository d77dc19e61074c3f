"""One door: whatever a user names as DATA becomes `Data`, or an error that says what was looked for and found."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vitkit.data.sources import fashion
from vitkit.data.sources.arrays import open_arrays
from vitkit.data.sources.base import Data, DataError
from vitkit.data.sources.files import is_picture, is_rubbish
from vitkit.data.sources.folders import open_folder
from vitkit.data.sources.hub import PREFIX, open_hub
from vitkit.data.sources.manifest import ENDINGS, open_manifest
from vitkit.data.sources.shards import INDEX, PLACES, UNFINISHED, has_index, open_shards
from vitkit.data.sources.tars import open_tars
from vitkit.data.sources.zips import open_zip
from vitkit.errors import did_you_mean

KINDS = (
    "a folder of pictures, or a .zip of one",
    "a manifest (.csv, .tsv, .jsonl)",
    "arrays (.npz)",
    "shards (.tar or a folder of them)",
    "hf:NAME",
    "fashion, the small set inside vitkit",
)


def open_data(source: str | os.PathLike[str], *, label: str | None = None) -> Data:
    """`label` names the column of labels where a manifest or a Hugging Face dataset has several, or calls it oddly."""
    name = os.fspath(source)
    if label is not None and not name.startswith(PREFIX) and not name.lower().endswith(ENDINGS):
        raise DataError(f"{name} has no columns, of which one could be {label!r}.")
    if name == fashion.NAME and isinstance(source, str):
        data = fashion.open_fashion()
        beside = (f"the set inside the package; write ./{name} for what is here under that name",)
        return replace(data, notes=data.notes + beside) if os.path.exists(name) else data
    if name.startswith(PREFIX):
        return open_hub(name, label=label)
    path = Path(name).expanduser()
    if path.is_dir():
        return _open_folder(name, path)
    if not path.is_file():
        raise _missing(name, path)
    ending = path.suffix.lower()
    if ending in ENDINGS:
        return open_manifest(name, path, label=label)
    if ending == ".npz":
        return open_arrays(name, path)
    if ending == ".tar" or path.name.lower().endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")):
        return open_tars(name, [path.absolute()])
    if ending == ".zip":
        return open_zip(name, path.absolute())
    if path.name in (INDEX, PLACES) and (path.parent / INDEX).is_file():
        return _open_folder(name, path.parent)
    hint = "the folder that it lies in" if is_picture(name) else None
    raise DataError(
        f"{name} is no data that I can use.",
        looked_for=KINDS,
        found="a single picture" if hint else f"a file that ends in {ending or 'nothing known'}",
        **({"try": hint} if hint else {}),
    )


def _open_folder(name: str, folder: Path) -> Data:
    if has_index(folder):
        return open_shards(name, folder)
    if (folder / UNFINISHED).exists():
        raise DataError(
            f"{name} holds shards whose writing was interrupted.", try_="vitkit shard again, to the same folder"
        )
    inside = [path for path in sorted(_listed(folder)) if not is_rubbish(path.name)]
    tars = [path.absolute() for path in inside if path.suffix.lower() == ".tar" and path.is_file()]
    if tars and not any(path.is_dir() or is_picture(path.name) for path in inside):
        return open_tars(name, tars)
    return open_folder(name, os.fspath(folder))  # a tar file beside pictures is the archive that they came in


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # told where the folder is opened in earnest
        return []


def _missing(name: str, path: Path) -> DataError:
    near = did_you_mean(path.name, [*(beside.name for beside in _listed(path.parent)), fashion.NAME])
    return DataError(f"{name} does not exist{near or '.'}", looked_for=KINDS)
