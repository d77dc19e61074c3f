"""A zip file of images, with class folders or masks inside, read in place."""

import contextlib
import os
import zipfile
from collections.abc import Iterable

from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.file_tree import FileTree
from vitkit.data.sources.folder_layout import infer_layout
from vitkit.data.sources.folder_scan import scan_names
from vitkit.data.sources.image_files import count_by_extension, is_image, is_system_file
from vitkit.data.sources.member_paths import check_member_path
from vitkit.data.sources.open_masks import no_masks, open_masks
from vitkit.data.sources.zip_files import ZipFiles
from vitkit.data.task import Task
from vitkit.storage.failures import ObjectError, StorageError
from vitkit.storage.stored_file import BLOCK, open_stored
from vitkit.storage.urls import is_url, last_part

_ENCRYPTED, _UNICODE = 0x1, 0x800  # bits of a member's flags
_SUPPORTED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_Member = tuple[str, zipfile.ZipInfo]  # with its path


class ZipTree(FileTree):
    """The files in a zip archive; of several with one path the last one counts, as when they are unpacked."""

    def __init__(self, name: str, file: str, members: Iterable[_Member]) -> None:
        self.name, self.file, self.members = name, file, dict(members)
        self.scan = scan_names(self.members)

    def files(self, paths: PackedStrings) -> ZipFiles:
        members = [self.members[path] if path else None for path in paths]
        _check_readable(self.name, filter(None, members))
        return ZipFiles(self.file, members)

    def keys(self, paths: PackedStrings) -> PackedStrings:
        return PackedStrings(f"{_shown(self.file)}/{path}" for path in paths)


def open_zip(name: str, file: str, task: Task = "classify") -> Data:
    """Open a zip file, a path or a URL: for segmentation if it holds masks, or for classification, as `task` says."""
    members = _members(name, file)
    images = sorted((member for member in members if is_image(member[0])), key=lambda member: member[0].split("/"))
    others = [path for path, _ in members if not is_image(path)]
    if not images:
        raise DataError(
            f"{name} has no usable images.",
            expected="CLASS/*.jpg, or SPLIT/CLASS/*.jpg",
            found=count_by_extension(others) or "nothing",
            try_="a zip file of images, without archives inside",
        )
    _check_readable(name, (info for _, info in images))
    mask_notes: list[str] = []
    if task != "classify":
        tree = ZipTree(name, file, members)
        data, mask_notes = open_masks(name, tree)
        if data is not None:
            return data
        if task == "segment":
            raise no_masks(name, tree.scan, mask_notes)
    layout = infer_layout(name, [path for path, _ in images], packed=True)
    splits = {
        split: RawSplit(
            [f"{_shown(file)}/{images[row][0]}" for row in rows],
            ZipFiles(file, [images[row][1] for row in rows]),
            layout.labels[split],
        )
        for split, rows in layout.rows.items()
    }
    notes = [f"not images, skipped: {count_by_extension(others)}"] if others else []
    return build_data(name, "zip file", splits, notes=[*mask_notes, *notes, *layout.notes])


def _members(name: str, file: str) -> list[_Member]:
    """Return the files of an archive, without those of the operating system; each path is inside the archive."""
    try:
        with open_stored(file, block=BLOCK) as stream, zipfile.ZipFile(stream) as archive:
            members = [(path, info) for info in archive.infolist() if (path := _path(info)).rpartition("/")[2]]
    except StorageError:
        raise
    except ObjectError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"{name} is not a zip file, or is incomplete: {error}.", try_="copy or download it again"
        ) from error
    for path, _ in members:
        check_member_path(name, path)
    return [member for member in members if not any(map(is_system_file, member[0].split("/")))]


def _check_readable(name: str, members: Iterable[zipfile.ZipInfo]) -> None:
    for info in members:
        if info.flag_bits & _ENCRYPTED:
            raise DataError(f"{name} is encrypted with a password.", try_="unpack it and use the folder")
        if info.compress_type not in _SUPPORTED:
            raise DataError(f"{name} uses an unsupported compression method.", try_="unpack it and use the folder")


def _shown(file: str) -> str:
    return last_part(file) if is_url(file) else os.path.basename(file)


def _path(info: zipfile.ZipInfo) -> str:
    """Return a member's path: many tools write UTF-8 without the flag, and Python then reads it as code page 437."""
    path = info.filename
    if not info.flag_bits & _UNICODE:
        with contextlib.suppress(UnicodeError):
            path = path.encode("cp437").decode("utf-8")
    return path.replace("\\", "/").removeprefix("./")  # Windows wrote backslashes for years
