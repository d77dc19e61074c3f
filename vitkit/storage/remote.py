"""Read, list and write files behind URLs through fsspec; every request has a timeout and is repeated where that helps.

fsspec is imported when the first URL is used. A filesystem of its has a thread and connections, which a fork does not
copy: each process opens its own.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitkit.storage.failures import (
    PAST_THE_END,
    DeniedObject,
    MissingObject,
    ObjectError,
    Passing,
    StorageError,
    TruncatedAnswer,
    code_of,
    gave_up,
    meaning,
)
from vitkit.storage.http import get_http
from vitkit.storage.repeats import answer_timeout, count_repeat, most_requests, most_tries, waits
from vitkit.storage.urls import WEB, has_credentials, redacted, scheme

_CONNECT = 10  # seconds at most until a connection stands
_S3 = ("s3", "s3a")
_SHARED = (*_S3, *WEB, "gs", "gcs", "hf")  # one filesystem serves all hosts and buckets
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "mtime",
    "blob_id",
)
_SHORT_TRIES = 3  # of a range that the object may end in: a cut answer looks the same

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ObjectInfo:
    size: int | None  # bytes; None where the server does not say
    version: str  # what changes when the object does: its ETag, or its time; "" where the server does not say


class _Process:
    """The filesystems and threads of this process."""

    def __init__(self) -> None:
        self.filesystems: dict[tuple[str, str], Any] = {}
        self.lock = threading.Lock()
        self.threads: ThreadPoolExecutor | None = None


_process = _Process()


def _start_anew() -> None:
    global _process
    _process = _Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def in_background(action: Callable[[Argument], Result], argument: Argument) -> "Future[Result]":
    """Start a request in one of this process's threads, whose number bounds the requests at a time."""
    with _process.lock:
        if _process.threads is None:
            _process.threads = ThreadPoolExecutor(most_requests(), thread_name_prefix="vitkit-remote")
        return _process.threads.submit(action, argument)


def read(url: str, limit: int) -> bytes:
    """Return a whole object in one request, or its first `limit` + 1 bytes where it is larger."""
    return _repeated(lambda filesystem, path: _get(filesystem, path, url, 0, limit + 1), url)


def read_range(url: str, start: int, size: int) -> bytes:
    """Return bytes of an object in one request; fewer only where it ends before."""
    if not size:
        return b""
    shortest = 0

    def get(filesystem: Any, path: str) -> bytes:
        nonlocal shortest
        content = _get(filesystem, path, url, start, start + size)
        if len(content) < size and (shortest := shortest + 1) < _SHORT_TRIES:
            raise TruncatedAnswer(f"an answer of {len(content):,} instead of {size:,} bytes")
        return content

    return _repeated(get, url)


def info(url: str) -> ObjectInfo:
    def ask(filesystem: Any, path: str) -> ObjectInfo:
        answer = filesystem.info(path)
        if answer.get("type") == "directory":
            raise FileNotFoundError(path)
        version = next((str(answer[name]) for name in _VERSIONS if answer.get(name)), "")
        return ObjectInfo(answer.get("size"), version)

    return _repeated(ask, url)


def exists(url: str) -> bool:
    """Return whether there is an object of that name; StorageError where the store does not tell."""
    try:
        info(url)
    except MissingObject:
        return False
    except ObjectError as error:
        raise StorageError(f"{redacted(url)} cannot be looked up: {error.strerror}.") from None
    return True


def list_files(folder: str) -> dict[str, int | None]:
    """Return the names of all files below a folder, relative to it, and their sizes."""

    def find(filesystem: Any, path: str) -> dict[str, int | None]:
        root = path.rstrip("/") + "/"
        found = filesystem.find(path, detail=True)
        return {
            name.removeprefix(root): entry.get("size")
            for name, entry in found.items()
            if name.startswith(root) and not name.endswith("/")
        }

    return _in_folder(folder, lambda: _repeated(find, folder, requests=_many))


def list_pattern(pattern: str) -> list[str]:
    """Return the URLs of the files that match a pattern with *."""

    def match(filesystem: Any, path: str) -> list[str]:
        return [str(filesystem.unstrip_protocol(name)) for name in sorted(filesystem.glob(path))]

    return _in_folder(pattern, lambda: _repeated(match, pattern, requests=_many))


def upload(file: Path, url: str) -> None:
    """Write a file to a URL in one piece: the object appears whole, or not at all."""
    _write(url, lambda filesystem, path: filesystem.put_file(os.fspath(file), path))


def write(url: str, content: bytes) -> None:
    """Write bytes to a URL; the object appears whole, or not at all."""
    _write(url, lambda filesystem, path: filesystem.pipe_file(path, content))


def create(url: str, content: bytes) -> bool:
    """Write bytes to a URL unless there is an object already; return whether they were written.

    One request does both where the store knows If-None-Match; elsewhere, the last of several processes wins.
    """
    created = False

    def put(filesystem: Any, path: str) -> None:
        nonlocal created
        try:
            filesystem.pipe_file(path, content, mode="create")
        except FileExistsError:
            return
        except (OSError, TypeError, NotImplementedError) as error:
            if isinstance(error, OSError) and code_of(error) not in ("NotImplemented", "501"):
                raise
            if filesystem.exists(path):
                return
            filesystem.pipe_file(path, content)
        created = True

    _write(url, put)
    return created


def delete(url: str) -> None:
    """Remove an object; one that is not there is removed already."""
    with contextlib.suppress(MissingObject):
        _write(url, lambda filesystem, path: filesystem.rm_file(path))


def check_writable(url: str) -> None:
    """Raise an error for a URL of a kind that cannot be written to."""
    if scheme(url) in WEB:
        raise StorageError(f"{redacted(url)}: https:// can be read, not written.", try_="s3://, gs:// or a file")


def _write(url: str, action: Callable[[Any, str], object]) -> None:
    check_writable(url)
    try:
        _repeated(action, url, requests=_many)
    except MissingObject:
        raise
    except DeniedObject as error:
        raise StorageError(
            f"{redacted(url)} cannot be written: {error.strerror}.", try_="credentials that may write there"
        ) from None
    except ObjectError as error:
        raise StorageError(f"{redacted(url)} cannot be written: {error.strerror}.") from None


def _in_folder(folder: str, action: Callable[[], Result]) -> Result:
    """Raise a StorageError where a folder cannot be listed."""
    try:
        return action()
    except ObjectError as error:
        raise StorageError(f"{redacted(folder)} cannot be listed: {error.strerror}.") from None


def _get(filesystem: Any, path: str, url: str, start: int, stop: int) -> bytes:
    if scheme(url) in WEB:
        return get_http(filesystem, path, start, stop)
    try:
        content: bytes = filesystem.cat_file(path, start=start, end=stop)
        return content
    except Exception as error:
        if code_of(error) in PAST_THE_END:
            return b""
        raise


def _one(filesystem: Any) -> int:
    return most_tries()


def _many(filesystem: Any) -> int:
    """Return the tries of an action of many requests: one where the filesystem repeats each of them itself."""
    return 1 if getattr(filesystem, "vitkit_repeats", False) else most_tries()


def _repeated(action: Callable[[Any, str], Result], url: str, *, requests: Callable[[Any], int] = _one) -> Result:
    """Call the action until it succeeds, fails for good, or has failed too often."""
    url = scheme(url) + url[len(scheme(url)) :]  # fsspec knows schemes in lower case alone
    filesystem = _filesystem(url)
    tries = requests(filesystem)
    path = filesystem._strip_protocol(url)
    for wait in (*waits(tries), None):
        try:
            return action(filesystem, path)
        except Exception as error:
            found = meaning(error, url)
            if wait is None and found is Passing.FAILURE:
                found = gave_up(error, url, most_tries())
        # outside of the handler: the library's error, with the URL in it, is then not part of a traceback
        if isinstance(found, Exception):
            raise found
        assert wait is not None
        count_repeat()
        time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _filesystem(url: str) -> Any:
    kind = scheme(url)
    if kind not in WEB and has_credentials(url):
        raise StorageError(
            f"{redacted(url)}: credentials in the URL are not used.",
            try_="the store's own variables or files, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    host = url.split("/")[2]
    if kind in _SHARED and not host:
        kinds = "host" if kind in WEB else "bucket"
        raise StorageError(f"{redacted(url)} names no {kinds}.", try_=f"{kind}://{kinds.upper()}/NAME")
    key = (kind, "" if kind in _SHARED else host)
    process = _process
    with process.lock:
        if key not in process.filesystems:
            process.filesystems[key] = _open(url)
        return process.filesystems[key]


def _open(url: str) -> Any:
    kind, timeout = scheme(url), answer_timeout()
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        from fsspec.core import url_to_fs

        if kind in _S3:
            from vitkit.storage.s3 import open_s3

            return open_s3(kind, min(timeout, _CONNECT), timeout, options)
        if kind in WEB:
            from aiohttp import ClientTimeout

            limits = ClientTimeout(total=None, sock_connect=min(timeout, _CONNECT), sock_read=timeout)
            options["client_kwargs"] = {"timeout": limits, "trust_env": True}  # proxies and ~/.netrc
        return url_to_fs(url, **options)[0]
    except (ImportError, ValueError) as error:
        known = "s3://, gs://, hf://, https:// and what fsspec knows"
        found = (
            meaning(error, url)
            if isinstance(error, ImportError)
            else StorageError(f"{redacted(url)}: nothing is known about {kind}://.", known=known)
        )
    raise found if isinstance(found, Exception) else StorageError(redacted(url))
