"""A zip file of pictures, as people send them: folders of classes inside, read in place."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.data.sources.assemble import Part, assemble
from vitkit.data.sources.base import Data, DataError, Picture
from vitkit.data.sources.files import by_extension, is_picture, is_rubbish
from vitkit.data.sources.layout import arrange

_ENCRYPTED, _UNICODE = 0x1, 0x800  # bits of a member's flags


class ZipPictures:
    """Members of a zip file. Threads may share an open one, processes may not: forked, they would move each other's."""

    def __init__(self, file: str, members: Sequence[int]) -> None:
        self.file, self.members = os.path.abspath(file), tuple(members)  # places in the archive's own list
        self._opened: tuple[int, zipfile.ZipFile] | None = None          # by which process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, row: int) -> Picture:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.file)
        archive = self._opened[1]
        try:
            return archive.read(archive.infolist()[self.members[row]])
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, IndexError) as error:
            raise DataError(f"{os.path.basename(self.file)} is damaged there: {error}") from error


def open_zip(name: str, file: Path) -> Data:
    try:
        with zipfile.ZipFile(file) as archive:
            inside = [(_path(info), place, info) for place, info in enumerate(archive.infolist()) if not info.is_dir()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise DataError(f"{name} is no zip file, or not a whole one: {error}.",
                        try_="copy or download it again") from error
    inside = [one for one in inside if not any(map(is_rubbish, one[0].split("/")))]
    pictures = sorted((one for one in inside if is_picture(one[0])), key=lambda one: one[0].split("/"))
    others = [path for path, _, _ in inside if not is_picture(path)]
    if not pictures:
        raise DataError(f"{name} has no pictures I can use.", looked_for="CLASS/*.jpg, or SPLIT/CLASS/*.jpg",
                        found=by_extension(others) or "nothing", try_="a zip file of pictures, not packed again inside")
    if any(info.flag_bits & _ENCRYPTED for _, _, info in pictures):
        raise DataError(f"{name} is locked with a password.", try_="unpack it, and name the folder")
    layout = arrange(name, [path for path, _, _ in pictures])
    parts = {split: Part([f"{file.name}/{pictures[row][0]}" for row in rows],
                         ZipPictures(str(file), [pictures[row][1] for row in rows]), layout.labels[split])
             for split, rows in layout.rows.items()}
    notes = [f"not pictures, left out: {by_extension(others)}"] if others else []
    return assemble(name, "zip file", parts, notes=[*notes, *layout.notes])


def _path(info: zipfile.ZipInfo) -> str:
    """Many tools write UTF-8 and do not say so; Python then reads it as IBM's code page 437."""
    path = info.filename
    if not info.flag_bits & _UNICODE:
        with contextlib.suppress(UnicodeError):
            path = path.encode("cp437").decode("utf-8")
    return path.removeprefix("./")
