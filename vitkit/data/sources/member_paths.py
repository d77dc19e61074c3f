"""Paths inside archives, which become keys and classes: only relative ones without tricks are accepted."""

import re

from vitkit.data.sources.dataset import DataError

_DRIVE = re.compile(r"[A-Za-z]:(/|$)")


def check_member_path(archive: str, path: str) -> None:
    """Refuse a member whose path is absolute, leads outside or has an empty part: "/a.jpg" is in no class folder."""
    parts = path.split("/")
    if path.startswith("/") or _DRIVE.match(path):
        reason = "an absolute path"
    elif ".." in parts:
        reason = 'a path with ".." in it'
    elif "" in parts or "." in parts:
        reason = "a path with an empty part"
    else:
        return
    raise DataError(
        f"{archive} has a file with {reason}: {path}",
        expected="CLASS/a.jpg or SPLIT/CLASS/a.jpg, relative to the top of the archive",
        try_="pack the folder again from inside, or unpack it and use the folder",
    )
