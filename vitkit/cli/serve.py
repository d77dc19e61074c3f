"""The verb that answers over HTTP."""

from __future__ import annotations

import json as text
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Device, at_least, option
from vitkit.errors import ConfigError

if TYPE_CHECKING:
    from vitkit.serve.model_pool import Service

KEY = "VITKIT_API_KEY"


def serve(
    runs: Annotated[
        Positional[tuple[str, ...]],
        option("run folders, weights files or hf:OWNER/NAME, each under its own name or another", "RUN…|NAME=RUN…"),
    ],
    host: Annotated[str, arg(help="the address to listen at; 0.0.0.0 is open to other machines")] = "127.0.0.1",
    port: Annotated[int, arg(help="0 takes any that is free")] = 8000,
    batch: Annotated[
        int | None, option("pictures computed together at most; what suits the device unless said", "N")
    ] = None,
    fast: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="the quickest way that this machine has; says which, and how well it agrees"),
    ] = False,
    device: Device = "auto",
    key_file: Annotated[
        Path | None,
        option(f"holds the key that clients must send; else the variable {KEY}, else none is asked for", "FILE"),
    ] = None,
    cors: Annotated[tuple[str, ...], option("pages of other sites that may ask", "ORIGIN")] = (),
    limit: Annotated[
        tuple[str, ...], option("body=32 (MB) pictures=64 megapixels=50 seconds=30 queue=256 …", "NAME=N")
    ] = (),
    json: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="print one line of JSON, with the address, once it listens")
    ] = False,
) -> None:
    """A trained model as a web service and a page: predictions, embeddings, attention; the same answers as predict.

    vitkit serve runs/pets        vitkit serve pets=runs/3 cars=runs/7 --port 0 --limit queue=64 seconds=5
    """
    at_least(1, batch=batch)
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: 0 to 65535 is needed")
    named, key = names_of(runs), key_of(key_file)
    for origin in cors:
        if not re.fullmatch(r"\*|https?://[^\s/]+", origin):
            raise ConfigError(f"--cors {origin}: an origin is needed", try_="https://example.org, without a path")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is needed to serve.", try_='pip install "vitkit[serve]"') from None

    from vitkit.predict.classifier import Classifier
    from vitkit.serve.app import create_app
    from vitkit.serve.http_server import address_of, beyond_loopback, bind, leaving, own_names, run
    from vitkit.serve.limits import limits_of
    from vitkit.serve.model_pool import Service, one_thread

    limits = limits_of(limit)
    with bind(host, port) as listener, one_thread() as computer:
        classifiers = {
            name: computer.submit(Classifier, source, device=device, fast=fast).result()
            for name, source in named.items()
        }
        with Service(classifiers, limits, batch=batch, computer=computer) as service:
            # a page elsewhere that points its name at this machine does not know the key
            app = create_app(service, key=key, cors=cors, hosts=own_names(listener) if key is None else None)
            service.warm()
            address, exposed = address_of(listener), beyond_loopback(listener)

            def say() -> None:
                if json:
                    print(
                        text.dumps(
                            {
                                "address": address,
                                "port": listener.getsockname()[1],
                                "models": list(named),
                                "key_needed": key is not None,
                                "pid": os.getpid(),
                            }
                        ),
                        flush=True,
                    )
                    return
                for name, source in named.items():
                    print(_model_line(service, name, source))
                print(
                    f"limits   {limits.body} MB, {limits.pictures} pictures, {limits.seconds} s a request; "
                    f"{limits.megapixels} megapixels a picture; {limits.queue} pictures wait at most, then 503"
                )
                print(f"key      {'needed for /v1/…' if key else 'none needed'}")
                if exposed and key is None:
                    print(
                        f"warning  bound to {host} without a key: whoever reaches this machine can ask. A key: "
                        f"{KEY}=… or --key-file FILE",
                        file=sys.stderr,
                    )
                print(f"serving  {address} (the page; programs: {address}/openapi.json); Ctrl-C stops", flush=True)

            whole = run(app, service, listener, say)
            if not whole:
                print(
                    "vitkit serve: stopped before every request was answered; the time for it was over", file=sys.stderr
                )
            with leaving(whole):
                service.stop()
    if not whole:
        sys.exit(1)


def names_of(runs: Sequence[str]) -> dict[str, str]:
    """ "runs/pets" → pets, "cats=runs/pets" → cats; the first is the default."""
    if not runs:
        raise ConfigError("no model named", try_="vitkit serve runs/pets")
    named: dict[str, str] = {}
    for word in runs:
        name, given, source = word.partition("=")
        if not given or Path(word).exists():
            source = word
            path = Path(word.removeprefix("hf:"))
            name = path.resolve().name if path.is_dir() else path.stem if path.suffix in _FILES else path.name
        if not re.fullmatch(r"[\w.-]{1,64}", name) or not source:
            raise ConfigError(
                f"{word}: {name!r} cannot be a model's name",
                try_=f"NAME={source or 'RUN'}, of letters, digits, dots and dashes",
            )
        if name in named:
            raise ConfigError(f"two models are named {name}", found=f"{named[name]}, {source}", try_=f"OTHER={source}")
        named[name] = source
    return named


_FILES = (".npz", ".safetensors")


def key_of(file: Path | None) -> str | None:
    """From a file or the environment: on the command line, everybody on the machine could read it."""
    told = os.environ.get(KEY)
    if file is not None and told is not None:
        raise ConfigError(f"--key-file {file} and {KEY} both hold a key: one is needed")
    if file is not None:
        try:
            told = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"--key-file {file} cannot be read: {reason}") from None
    if told is None:
        return None
    key = told.strip()
    if not re.fullmatch(r"[!-~]{8,}", key):
        raise ConfigError(
            f"the key of {file or KEY} cannot be used: 8 or more letters, digits and signs are needed",
            try_="python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return key


def _model_line(service: Service, name: str, source: str) -> str:
    served = service.models[name]
    told = served.describe()
    height, width = told.image
    note = " (default)" if name == service.default and len(service.models) > 1 else ""
    return (
        f"model    {name}{note}: {told.variant or 'sizes of its own'} at {height} x {width} px, "
        f"{len(told.classes)} classes, from {source}\n"
        f"computes {told.computes}; up to {served.batch} pictures together"
    )
