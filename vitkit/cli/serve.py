"""`vitkit serve`: models behind an HTTP API, with a web page."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from vitkit import messages
from vitkit.cli.key_file import read_key_file
from vitkit.cli.options import Device, at_least, option, print_json
from vitkit.errors import ConfigError
from vitkit.messages import WARNING, say
from vitkit.storage.urls import is_url, last_part
from vitkit.text import counted

if TYPE_CHECKING:
    from vitkit.serve.model_pool import ModelPool

KEY = "VITKIT_API_KEY"


def serve(
    runs: Annotated[
        Positional[tuple[str, ...]],
        option(
            "run folders, weights files, hf:OWNER/NAME or ti16, each optionally with a name for clients",
            "RUN…|NAME=RUN…",
        ),
    ],
    host: Annotated[str, arg(help="address to listen on; 0.0.0.0 is open to other machines")] = "127.0.0.1",
    port: Annotated[int, arg(help="port to listen on; 0 takes any free one")] = 8000,
    batch: Annotated[int | None, option("largest micro-batch, in images; default: what suits the device", "N")] = None,
    fast: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="use the fastest engine on this machine; prints which one, and how well it agrees"),
    ] = False,
    device: Device = "auto",
    key_file: Annotated[
        Path | None,
        option(f"file with the API key for /v1/… and /metrics; default: the variable {KEY}, else no key", "FILE"),
    ] = None,
    cors: Annotated[tuple[str, ...], option("other sites whose pages may send requests", "ORIGIN")] = (),
    limit: Annotated[
        tuple[str, ...], option("body=32 (MB) images=64 megapixels=50 seconds=30 queue=256 …", "NAME=N")
    ] = (),
    json: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="print one line of JSON, with the address, once the server listens"),
    ] = False,
) -> None:
    """Serve trained models over HTTP and on a web page: predictions, masks, embeddings and attention maps.

    vitkit serve runs/pets        vitkit serve pets=runs/3 cars=runs/7 --port 0 --limit queue=64 seconds=5
    """
    at_least(1, batch=batch)
    if not 0 <= port < 65536:
        raise ConfigError(f"--port {port}: a port is a number from 0 to 65535")
    sources, key = name_models(runs), read_api_key(key_file)
    for origin in cors:
        if not re.fullmatch(r"\*|https?://[^\s/]+", origin):
            raise ConfigError(f"--cors {origin} is not an origin", try_="https://example.org, without a path")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"vitkit serve needs the package {error.name}.", try_='pip install "vitkit[serve]"') from None

    from vitkit.predict.open_predictor import open_predictor
    from vitkit.serve import decode_process
    from vitkit.serve.app import create_app
    from vitkit.serve.http_server import address_of, beyond_loopback, bind, exit_deadline, local_hostnames, run
    from vitkit.serve.limits import DEPRECATED_LIMITS, parse_limits
    from vitkit.serve.model_pool import ModelPool, make_compute_executor

    limits = parse_limits(limit)
    decode_process.prepare()  # its imports take as long as the models do
    for old in {assignment.partition("=")[0] for assignment in limit} & DEPRECATED_LIMITS.keys():
        new = DEPRECATED_LIMITS[old]
        text = f"--limit {old}=N is deprecated and will be removed in the next release; use --limit {new}=N"
        say(WARNING, text, file=sys.stderr)
    with bind(host, port) as listener, make_compute_executor() as compute_executor:
        models = {
            name: compute_executor.submit(open_predictor, source, device=device, fast=fast).result()
            for name, source in sources.items()
        }
        with ModelPool(models, limits, batch=batch, compute_executor=compute_executor) as pool:
            # with a key, any host name is allowed: a page that rebinds its name to this machine does not know the key
            app = create_app(pool, key=key, cors=cors, hosts=local_hostnames(listener) if key is None else None)
            pool.warm_up()
            address, exposed = address_of(listener), beyond_loopback(listener)

            def on_ready() -> None:
                if json:
                    summary = {"address": address, "port": listener.getsockname()[1], "models": list(sources)}
                    summary["input"] = {
                        name: "; ".join(pool.workers[name].describe().preprocessing) for name in sources
                    }
                    print_json("serve", {**summary, "key_needed": key is not None, "pid": os.getpid()})
                    sys.stdout.flush()
                    return
                for name, source in sources.items():
                    _print_model(pool, name, source)
                say(
                    "limits",
                    f"{limits.body} MB, {limits.images} images, {limits.seconds} s per request; "
                    f"{limits.megapixels} megapixels per image, {limits.request_megapixels} per request; "
                    f"{limits.queue} images in the queue, then 503",
                )
                say("key", "required for /v1/… and /metrics" if key else "not required")
                if exposed and key is None:
                    say(
                        WARNING,
                        f"bound to {host} without a key: everyone who reaches this machine can send requests. "
                        f"Set a key with {KEY}=… or --key-file FILE",
                        file=sys.stderr,
                    )
                say("serving", f"{address} (web page; API: {address}/openapi.json); Ctrl-C stops the server")

            all_answered = run(app, pool, listener, on_ready)
            if not all_answered:
                messages.error("vitkit serve", "the time limit ended before every request was answered", exit_code=1)
            with exit_deadline(all_answered):
                pool.shutdown()
    if not all_answered:
        sys.exit(1)


def name_models(runs: Sequence[str]) -> dict[str, str]:
    """Return sources by model name: "runs/pets" is named pets, "cats=runs/pets" cats; the first is the default."""
    if not runs:
        raise ConfigError("vitkit serve needs a model", try_="vitkit serve runs/pets")
    sources: dict[str, str] = {}
    for argument in runs:
        name, equals, source = argument.partition("=")
        if not equals or is_url(argument) or Path(argument).exists():
            source = argument
            path = Path(last_part(argument) if is_url(argument) else argument.removeprefix("hf:"))
            name = path.resolve().name if path.is_dir() else path.stem if path.suffix in _FILES else path.name
        if not re.fullmatch(r"[\w.-]{1,64}", name) or not source:
            raise ConfigError(
                f"{argument}: {name!r} cannot be the name of a model",
                try_=f"NAME={source or 'RUN'}, with a name of letters, digits, dots and dashes",
            )
        if name in sources:
            raise ConfigError(
                f"two models have the name {name}", found=f"{sources[name]}, {source}", try_=f"OTHER={source}"
            )
        sources[name] = source
    return sources


_FILES = (".npz", ".safetensors")


def read_api_key(file: Path | None) -> str | None:
    """Return the API key of a file or the environment; every user of the machine could read a command line."""
    content = os.environ.get(KEY)
    if file is not None and content is not None:
        raise ConfigError(f"--key-file {file} and {KEY} both hold a key; use one of them")
    if file is not None:
        content = read_key_file(file)
    if content is None:
        return None
    key = content.strip()
    if not re.fullmatch(r"[!-~]{8,}", key):
        raise ConfigError(
            f"the key of {file or KEY} cannot be used: it must have 8 or more letters, digits and signs",
            try_="python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return key


def _print_model(pool: ModelPool, name: str, source: str) -> None:
    from vitkit.compute.windows import MANY

    worker = pool.workers[name]
    info = worker.describe()
    height, width = info.image
    note = " (default)" if name == pool.default_name and len(pool.workers) > 1 else ""
    say(
        "model",
        f"{name}{note}: {info.variant or 'custom sizes'} at {height} x {width} px, "
        f"{counted(len(info.classes), 'class')}{' of pixels' * (info.task == 'segment')}, from {source}",
    )
    say("input", "; ".join(info.preprocessing))
    if info.window is not None:
        window = f"{info.window[0]} x {info.window[1]}"
        say(
            "windows", f"images of more than {MANY} times {window} pixels are cut into overlapping windows of that size"
        )
    say("computes", f"{info.computes}; micro-batches of up to {worker.batch} images")
