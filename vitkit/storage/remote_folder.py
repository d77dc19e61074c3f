"""An output folder behind a URL: objects that appear whole; without locks, so that processes may write one twice."""

import contextlib
from collections.abc import Iterator

from vitkit.storage import remote
from vitkit.storage.failures import ObjectError, StorageError
from vitkit.storage.urls import join, redacted, without_slash

_LARGEST = 2**40


class RemoteFolder:
    """The `OutputFolder` of vitkit/output_folder.py on an object store."""

    def __init__(self, url: str):
        remote.check_writable(url)
        self.url = without_slash(url)

    @property
    def where(self) -> str:
        return redacted(self.url)

    def names(self, prefix: str = "") -> list[str]:
        """Return the sorted names of files and folders in the folder."""
        names = {name.split("/")[0] for name in remote.list_files(self.url)}
        return sorted(name for name in names if name.startswith(prefix) and not name.startswith("."))

    def exists(self, name: str) -> bool:
        return remote.exists(join(self.url, name))

    def read(self, name: str) -> bytes:
        try:
            return remote.read(join(self.url, name), _LARGEST)
        except ObjectError as error:
            raise StorageError(f"{self.where}/{name} cannot be read: {error.strerror}.") from None

    def write(self, name: str, content: bytes) -> None:
        remote.write(join(self.url, name), content)

    def create(self, name: str, content: bytes) -> bytes:
        """Write a file unless it is there, by a conditional request where the store has them."""
        return content if remote.create(join(self.url, name), content) else self.read(name)

    def delete(self, name: str) -> None:
        remote.delete(join(self.url, name))

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        yield True
