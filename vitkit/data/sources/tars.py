"""Tar files without an index, from elsewhere: webdataset's KEY.jpg beside KEY.cls, or folders of classes inside.

Each file is scanned once, here; pictures are then read in place.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitkit.data.sources.assemble import Part, assemble
from vitkit.data.sources.base import Data, DataError, composed
from vitkit.data.sources.files import by_extension, extension, is_picture, is_rubbish
from vitkit.data.sources.layout import arrange
from vitkit.data.sources.shards import TarPictures
from vitkit.data.sources.splits import WHOLE, split_within
from vitkit.text import counted, few

_LONGEST_LABEL = 1 << 20
_SIDES = (".cls", ".json", ".txt")


@dataclass(frozen=True)
class Member:
    path: str  # inside the tar file
    shard: int
    offset: int
    size: int


@dataclass
class Scan:
    pictures: list[Member] = field(default_factory=list)
    sides: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)  # (shard, key) → ending → text
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def open_tars(name: str, files: Sequence[Path]) -> Data:
    """`files` lie in one folder."""
    scan = Scan()
    for shard, file in enumerate(files):
        _scan(name, file, shard, scan)
    if not scan.pictures:
        raise DataError(
            f"{name} has no pictures I can use.",
            looked_for="KEY.jpg, KEY.png, … beside KEY.cls or KEY.json; or CLASS/*.jpg",
            found=by_extension(scan.others),
            try_="tar files of pictures, not packed again inside",
        )
    if scan.others:
        scan.notes.append(f"not pictures, left out: {by_extension(scan.others)}")
    labels, notes = _labels(name, scan)
    members = scan.pictures
    by_file = [split_within(file.name.split(".")[0]) for file in files]
    splits = [by_file[member.shard] if all(by_file) else WHOLE for member in members]
    if labels is None and not all(by_file) and any("/" in member.path for member in members):
        return _as_folders(name, files, scan)
    parts = {}
    for split in filter(None, dict.fromkeys(splits)):
        rows = [row for row, where in enumerate(splits) if where == split]
        parts[split] = _part(files, [members[row] for row in rows], [labels[row] if labels else None for row in rows])
    return assemble(name, "shards", parts, notes=[*scan.notes, *notes])


def _as_folders(name: str, files: Sequence[Path], scan: Scan) -> Data:
    members = sorted(scan.pictures, key=lambda member: member.path.split("/"))
    layout = arrange(name, [member.path for member in members], packed=True)
    parts = {
        split: _part(files, [members[row] for row in rows], layout.labels[split]) for split, rows in layout.rows.items()
    }
    return assemble(name, "shards", parts, notes=[*scan.notes, *layout.notes])


def _part(files: Sequence[Path], members: Sequence[Member], labels: Sequence[str | None]) -> Part:
    shard, offset, size = (
        np.array([getattr(member, field) for member in members], dtype=np.int64)
        for field in ("shard", "offset", "size")
    )
    names = [file.name for file in files]
    keys = [f"{names[member.shard]}/{member.path}" for member in members]
    return Part(keys, TarPictures(str(files[0].parent), names, shard, offset, size), labels)


def _scan(name: str, file: Path, shard: int, scan: Scan) -> None:
    shown = name if os.path.basename(name) == file.name else f"{name}: {file.name}"
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                path = member.name.removeprefix("./")
                if member.isdir() or any(map(is_rubbish, path.split("/"))):
                    continue
                if not member.isreg() or member.issparse():
                    scan.notes.append(f"{file.name}: {path} is a link or no plain file, left out")
                elif is_picture(path):
                    scan.pictures.append(Member(path, shard, member.offset_data, member.size))
                elif extension(path) in _SIDES and member.size <= _LONGEST_LABEL:
                    stream = tar.extractfile(member)
                    text = stream.read().decode("utf-8", "replace") if stream else ""
                    scan.sides.setdefault((shard, _key(path)), {})[extension(path)] = text
                else:
                    scan.others.append(path)
            stop = tar.offset
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if _compressed(file):
            raise DataError(
                f"{shown} is compressed: its pictures cannot be reached one by one.", try_="unpack it to a plain .tar"
            ) from error
        raise DataError(
            f"{shown} is no tar file, or not a whole one: {error}.", try_="copy or download it again"
        ) from error
    _check_end(shown, file, stop, scan)


def _compressed(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(6).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
    except OSError:
        return False


def _check_end(shown: str, file: Path, stop: int, scan: Scan) -> None:
    """tarfile stops without a word at a damaged header in the middle; a whole file ends in blocks of zeros."""
    with file.open("rb") as stream:
        stream.seek(stop)
        block = stream.read(tarfile.BLOCKSIZE)
    if any(block):
        raise DataError(f"{shown} is damaged {stop:,} bytes from its start.", try_="copy or download it again")
    if not block:
        scan.notes.append(f"{file.name} lacks a tar file's end mark: it may have been cut off")


def _key(path: str) -> str:
    """webdataset's: up to the first dot of the last part."""
    folder, slash, last = path.rpartition("/")
    return folder + slash + last.split(".")[0]


def _labels(name: str, scan: Scan) -> tuple[list[str | None] | None, list[str]]:
    """A label per picture from what stands beside it; None when nothing does."""
    keys = [(member.shard, _key(member.path)) for member in scan.pictures]
    if scan.sides and len(set(keys)) < len(keys):
        twice = sorted({path for (_, path), count in Counter(keys).items() if count > 1})
        raise DataError(
            f"{name} has keys with more than one picture, so that it is unknown which the labels are for.",
            such_as=few(twice),
        )
    found = [_label(name, path, scan.sides.get((shard, path), {})) for shard, path in keys]
    if any(label is not None for label in found):
        return found, []
    words = [scan.sides.get(key, {}).get(".txt", "").strip() or None for key in keys]
    given = [word for word in words if word]
    if given and len(set(map(composed, given))) <= max(1, len(given) // 2):
        return words, []
    return None, [f"{counted(len(given), '.txt file')}, mostly different: captions, not classes"] if given else []


def _label(name: str, key: str, sides: dict[str, str]) -> str | None:
    if text := sides.get(".cls", "").strip():
        return text
    if ".json" not in sides:
        return None
    try:
        record = json.loads(sides[".json"])
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: {key}.json is not JSON: {error}.") from error
    values: Iterable[object] = (record.get(word) for word in ("label", "cls")) if isinstance(record, dict) else ()
    value = next((value for value in values if value is not None), None)
    if value is None or isinstance(value, str | int):
        return None if value is None else str(value).strip() or None
    raise DataError(f"{name}: the label in {key}.json is no word and no whole number: {value!r}.")
