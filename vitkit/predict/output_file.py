"""The file that rows are written to: a path, or a URL with a file on this disk that is uploaded when it is complete.

Rows are appended one batch after the other, and an object store appends nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.errors import ConfigError
from vitkit.predict.journal import journal_path
from vitkit.storage import remote
from vitkit.storage.local_copies import folder_of
from vitkit.storage.urls import is_url, join, last_part, parent, redacted


@dataclass(frozen=True)
class OutputFile:
    path: Path  # on this disk
    url: str | None = None  # where it is uploaded to

    @classmethod
    def of(cls, name: str | os.PathLike[str]) -> OutputFile:
        """Return the output of that name; for a URL, in a folder of the cache that belongs to it."""
        if not is_url(name):
            return cls(Path(name))
        url = os.fspath(name)
        folder = folder_of(url, "outputs")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be made: {error.strerror}.", try_="XDG_CACHE_HOME, another folder"
            ) from None
        return cls(folder / last_part(url), url)

    @property
    def journal(self) -> Path:
        return journal_path(self.path)

    def name_of(self, path: Path) -> str:
        """Return the name of the file or of one beside it, for messages."""
        return str(path) if self.url is None else redacted(self._url_of(path))

    def exists(self, path: Path) -> bool:
        """Return whether the output is complete; of a URL, this also tells at once whether its store can be used."""
        return os.path.exists(path) if self.url is None else remote.exists(self._url_of(path))

    def being_replaced(self, path: Path) -> bool:
        """Return whether a call with `overwrite` was interrupted: its rows are newer than the file.

        The journal of a URL ends with the upload: where there is one, its rows have not been uploaded.
        """
        if not self.journal.exists():
            return False
        return self.url is not None or self.journal.stat().st_mtime >= path.stat().st_mtime

    def delete(self) -> None:
        """Remove the file itself, here and behind its URL."""
        self.path.unlink(missing_ok=True)
        if self.url is not None:
            remote.delete(self.url)

    def publish(self, sidecars: Sequence[Path]) -> None:
        """Upload the complete file after those beside it, then remove them here; a path is where it belongs already."""
        if self.url is None:
            return
        for path in (*sidecars, self.path):
            remote.upload(path, self._url_of(path))
        for path in (*sidecars, self.path):
            path.unlink(missing_ok=True)

    def _url_of(self, path: Path) -> str:
        assert self.url is not None
        return self.url if path == self.path else join(parent(self.url), path.name)
