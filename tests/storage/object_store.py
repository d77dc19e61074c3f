"""A local S3 server, moto's, that can be told to fail: with errors, late, cut or broken answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from vitkit.storage import remote

BUCKET = "images"
LATE = 1.5  # seconds; the tests' time-out is one second

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Answer = Callable[[Environ, StartResponse], Iterable[bytes]]


class FaultyStore:
    """moto as a WSGI application; `rule` returns the name of a fault for a request, or None."""

    def __init__(self) -> None:
        self.moto: Answer = DomainDispatcherApplication(create_backend_app)
        self.rule: Callable[[Environ], str | None] = lambda environ: None
        self.requests: list[str] = []
        self.injected: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        with self.lock:
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            fault = self.rule(environ)
            if fault is not None:
                self.injected.append(fault)
        if fault is None:
            return self.moto(environ, start_response)
        if fault == "late":
            time.sleep(LATE)
            return self.moto(environ, start_response)
        if fault in ("cut", "reset"):
            content = b"".join(self.moto(environ, start_response))
            return _broken_off(content[: len(content) // 2 if fault == "cut" else 0], environ["werkzeug.socket"])
        status, _, code = fault.partition(" ")
        body = f"<Error><Code>{code}</Code><Message>{code} on purpose</Message></Error>".encode()
        length = ("Content-Length", str(len(body)))
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(f"{status} Failed", [("Content-Type", "application/xml"), length])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    @contextlib.contextmanager
    def failing(self, rule: Callable[[Environ], str | None]) -> Iterator[None]:
        """Fail by a rule; afterwards, `requests` and `injected` are those of this time."""
        self.requests.clear()
        self.injected.clear()
        self.rule = rule
        try:
            yield
        finally:
            self.rule = lambda environ: None

    def every(self, number: int, *faults: str, method: str = "GET") -> Callable[[Environ], str | None]:
        """Return a rule that fails every so many requests of a method, with one fault after the other."""
        seen = 0

        def rule(environ: Environ) -> str | None:
            nonlocal seen
            if environ["REQUEST_METHOD"] != method:
                return None
            seen += 1
            return faults[seen // number % len(faults)] if seen % number == 0 else None

        return rule


def _broken_off(content: bytes, connection: socket.socket) -> Iterator[bytes]:
    """Yield the beginning of an answer whose Content-Length is that of all of it, then end the connection."""
    yield content
    connection.shutdown(socket.SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def serve_store() -> Iterator[tuple[FaultyStore, str]]:
    """Yield a store with a bucket and the address of its server."""
    store = FaultyStore()
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=_Quiet)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()


def make_bucket(name: str = BUCKET) -> None:
    remote._filesystem(f"s3://{name}/").mkdir(name)


def upload_folder(folder: Path, url: str) -> str:
    for file in folder.rglob("*"):
        if file.is_file():
            remote.upload(file, f"{url}/{file.relative_to(folder).as_posix()}")
    return url


def make_public(*paths: str) -> None:
    """Let these files, and those below them, be read without credentials."""
    filesystem = remote._filesystem(f"s3://{BUCKET}/")
    for path in paths:
        for name in filesystem.find(path):
            filesystem.chmod(name, acl="public-read")
