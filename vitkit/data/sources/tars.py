"""Tar files without an index: webdataset's KEY.jpg next to KEY.cls, or class folders inside.

Each file is scanned once, here; images are then read in place.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vitkit.data.sources.class_labels import NamedLabelRows, NamedLabels, RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, nfc
from vitkit.data.sources.folder_layout import infer_layout
from vitkit.data.sources.image_files import count_by_extension, extension, is_image, is_system_file
from vitkit.data.sources.member_paths import check_member_path
from vitkit.data.sources.shards import TarImages
from vitkit.data.sources.splits import ALL, split_in_file_name
from vitkit.storage.failures import ObjectError, StorageError
from vitkit.storage.stored_file import BLOCK, open_stored
from vitkit.storage.urls import join, last_part
from vitkit.text import counted, few, printable

_LONGEST_LABEL = 1 << 20
_SIDECARS = (".cls", ".json", ".txt")


@dataclass(frozen=True)
class TarMember:
    path: str  # inside the tar file
    shard: int
    offset: int
    size: int


@dataclass
class TarScan:
    images: list[TarMember] = field(default_factory=list)
    sidecars: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)  # (shard, key) → ending → text
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def open_tars(name: str, folder: str, files: Sequence[str]) -> Data:
    """Open the tar files of these names in a folder, which may be remote."""
    scan = TarScan()
    for shard, file in enumerate(files):
        _scan(name, folder, file, shard, scan)
    if not scan.images:
        raise DataError(
            f"{name} has no usable images.",
            expected="KEY.jpg, KEY.png, … next to KEY.cls or KEY.json; or CLASS/*.jpg",
            found=count_by_extension(scan.others),
            try_="tar files of images, without archives inside",
        )
    if scan.others:
        scan.notes.append(f"not images, skipped: {count_by_extension(scan.others)}")
    labels, notes = _labels(name, scan)
    members = scan.images
    by_file = [split_in_file_name(last_part(file).split(".")[0]) for file in files]
    splits = [by_file[member.shard] if all(by_file) else ALL for member in members]
    if labels is None and not all(by_file) and any("/" in member.path for member in members):
        return _as_folders(name, folder, files, scan)
    raw_splits = {}
    for split in filter(None, dict.fromkeys(splits)):
        rows = [row for row, own in enumerate(splits) if own == split]
        chosen: Sequence[str | None] | NamedLabels
        if isinstance(labels, NamedLabels):
            chosen = replace(labels, labels=labels.labels[np.array(rows)])
        else:
            chosen = [labels[row] if labels else None for row in rows]
        raw_splits[split] = _raw_split(folder, files, [members[row] for row in rows], chosen)
    return build_data(name, "shards", raw_splits, notes=[*scan.notes, *notes])


def _as_folders(name: str, folder: str, files: Sequence[str], scan: TarScan) -> Data:
    members = sorted(scan.images, key=lambda member: member.path.split("/"))
    layout = infer_layout(name, [member.path for member in members], packed=True)
    raw_splits = {
        split: _raw_split(folder, files, [members[row] for row in rows], layout.labels[split])
        for split, rows in layout.rows.items()
    }
    return build_data(name, "shards", raw_splits, notes=[*scan.notes, *layout.notes])


def _raw_split(
    folder: str, files: Sequence[str], members: Sequence[TarMember], labels: Sequence[str | None] | NamedLabels
) -> RawSplit:
    shard, offset, size = (
        np.array([getattr(member, field) for member in members], dtype=np.int64)
        for field in ("shard", "offset", "size")
    )
    names = [*map(last_part, files)]
    keys = [f"{names[member.shard]}/{member.path}" for member in members]
    return RawSplit(keys, TarImages(folder, files, shard, offset, size), labels)


def _scan(name: str, folder: str, file: str, shard: int, scan: TarScan) -> None:
    path_or_url, file = join(folder, file), last_part(file)
    shown = name if os.path.basename(name) == file else f"{name}: {file}"
    try:
        # a remote file is read from end to end: as many requests as images would take longer
        with open_stored(path_or_url, block=BLOCK) as archive, tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                path = member.name.removeprefix("./")
                if member.isdir():
                    continue
                check_member_path(shown, path)
                if any(map(is_system_file, path.split("/"))):
                    continue
                if not member.isreg() or member.issparse():
                    scan.notes.append(f"{file}: {printable(path)} is a link or not a regular file, skipped")
                elif is_image(path):
                    scan.images.append(TarMember(path, shard, member.offset_data, member.size))
                elif extension(path) in _SIDECARS and member.size <= _LONGEST_LABEL:
                    stream = tar.extractfile(member)
                    text = stream.read().decode("utf-8", "replace") if stream else ""
                    scan.sidecars.setdefault((shard, _key(path)), {})[extension(path)] = text
                else:
                    scan.others.append(path)
            stop = tar.offset
    except (DataError, StorageError):
        raise
    except ObjectError as error:
        raise DataError(f"{shown} cannot be read: {error.strerror}.") from error
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if _compressed(path_or_url):
            raise DataError(
                f"{shown} is compressed, which rules out random access.", try_="decompress it to a plain .tar"
            ) from error
        raise DataError(
            f"{shown} is not a tar file, or is incomplete: {error}.", try_="copy or download it again"
        ) from error
    _check_end(shown, path_or_url, stop, scan)


def _compressed(path_or_url: str) -> bool:
    try:
        with open_stored(path_or_url) as stream:
            start: bytes = stream.read(6)
            return start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
    except OSError:
        return False


def _check_end(shown: str, path_or_url: str, stop: int, scan: TarScan) -> None:
    """Check for the blocks of zeros at a tar file's end: tarfile silently stops at a damaged header."""
    with open_stored(path_or_url) as stream:
        stream.seek(stop)
        block = stream.read(tarfile.BLOCKSIZE)
    if any(block):
        raise DataError(f"{shown} is damaged {stop:,} bytes from its start.", try_="copy or download it again")
    if not block:
        scan.notes.append(f"{last_part(path_or_url)} has no end-of-archive marker: it may be truncated")


def _key(path: str) -> str:
    """Return webdataset's key: the path up to the first dot of the file name."""
    folder, slash, last = path.rpartition("/")
    return folder + slash + last.split(".")[0]


def _labels(name: str, scan: TarScan) -> tuple[list[str | None] | NamedLabels | None, list[str]]:
    """Return a label per image from its sidecar files, lists of them, or None without any; and notes."""
    keys = [(member.shard, _key(member.path)) for member in scan.images]
    if scan.sidecars and len(set(keys)) < len(keys):
        twice = sorted({path for (_, path), count in Counter(keys).items() if count > 1})
        raise DataError(
            f"{name} has keys with more than one image, so their labels are ambiguous.",
            such_as=few(twice),
        )
    found = [_label(name, path, scan.sidecars.get((shard, path), {})) for shard, path in keys]
    if any(isinstance(label, list) for label in found):
        rows = NamedLabelRows()
        for label in found:
            rows.add(label if isinstance(label, list) else [] if label is None else [label])
        return rows.build(), []
    labels = [label for label in found if not isinstance(label, list)]
    if any(label is not None for label in labels):
        return labels, []
    texts = [scan.sidecars.get(key, {}).get(".txt", "").strip() or None for key in keys]
    present = [text for text in texts if text]
    if present and len(set(map(nfc, present))) <= max(1, len(present) // 2):
        return texts, []
    return None, [f"{counted(len(present), '.txt file')}, mostly different: captions, not classes"] if present else []


def _label(name: str, key: str, sidecars: dict[str, str]) -> str | list[str] | None:
    """Return the label of an image, or the list of its labels where its record has one."""
    if text := sidecars.get(".cls", "").strip():
        return text
    if ".json" not in sidecars:
        return None
    try:
        record = json.loads(sidecars[".json"])
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: {key}.json is not JSON: {error}.") from error
    if not isinstance(record, dict):
        return None
    value = next((record[field] for field in ("label", "cls") if record.get(field) is not None), None)
    several = record.get("labels")  # as `vitkit shard` writes them
    if value is None and isinstance(several, list) and all(isinstance(one, str | int) for one in several):
        return [text for one in several if (text := str(one).strip())]
    if value is None or isinstance(value, str | int):
        return None if value is None else str(value).strip() or None
    raise DataError(f"{name}: the label in {key}.json is neither text nor an integer: {value!r}.")
