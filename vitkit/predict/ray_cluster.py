"""A Ray cluster for jobs over images: the one that RAY_ADDRESS names, or a local one that ends with the job.

Ray is imported here, and in the modules beside it that need it, once it is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import vitkit
from vitkit.devices import cores
from vitkit.errors import ConfigError, VitkitError
from vitkit.text import counted

ADDRESS = "RAY_ADDRESS"
SECONDS_TO_REACH = 5.0
STARTS = 3  # of a local cluster: Ray gives its own helpers 15 s, which a busy machine may not grant them
CORES_PER_MODEL = 4  # on a CPU: more cores for one model gain little, and fewer need more memory for models

_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # a frame of HTTP/2: three bytes of length, then its type

Versions = Mapping[str, str]  # package → version


@dataclass(frozen=True)
class RayCluster:
    """The resources of a cluster, and how they are divided among models."""

    description: str
    models: int  # actors, with a model each
    cores: int  # of an actor
    gpus: int  # of an actor, 0 or 1


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Connect to the cluster of RAY_ADDRESS, or start a local one, and check the versions of its nodes."""
    address = os.environ.get(ADDRESS)
    remote = bool(address) and address != "local"
    if address and remote and "ray" not in sys.modules and find_spec("ray"):
        _reach(address)  # before an import that takes seconds
    ray, data = import_ray()
    if ray.is_initialized():  # by the program that calls
        with _quiet(data):
            yield _describe(ray, "connected already")
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of C++; its log files are in /tmp/ray
    try:
        if address and remote:
            _reach(address)
            _connect(ray, address)
        else:
            _start(ray)
        with _quiet(data):
            if remote:
                _check_nodes(ray)
            yield _describe(ray, f"at {address}" if remote else "started on this machine")
    finally:
        ray.shutdown()


def import_ray() -> tuple[Any, Any]:
    """Return ray and ray.data, or raise an error that names the extra."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError(f"--engine ray needs the package {error.name}.", try_='pip install "vitkit[ray]"') from None
    return ray, ray.data


def put(value: Any) -> Any:
    """Store an object for all workers and return its reference; raise an error where the cluster has no room for it."""
    ray, _ = import_ray()
    try:
        return ray.put(value)
    except ray.exceptions.RayError as error:
        raise store_full(error) or error from None


def store_full(error: BaseException) -> ConfigError | None:
    """Return the error of a user whose Ray object store is full, or None where Ray has failed for another reason."""
    ray, _ = import_ray()
    full = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
    if not isinstance(error, full) and not isinstance(getattr(error, "cause", None), full):
        return None
    return ConfigError(
        "the object store of the Ray cluster is full, and so is the disk that it spills to.",
        try_=[
            "ray memory and df on its nodes, which show what fills them",
            "ray start --object-store-memory BYTES --temp-dir FOLDER, on a disk with room",
        ],
    )


def own_versions() -> dict[str, str]:
    """Return the versions on which the answers depend."""
    return {"vitkit": vitkit.__version__, "torch": metadata.version("torch")}


def check_versions(driver: Versions, worker: Versions, where: str) -> None:
    """Raise an error where a worker has other versions than the driver: its answers could differ."""
    different = [name for name in driver if worker.get(name) != driver[name]]
    if different:
        raise ConfigError(
            f"the Ray workers on {where} do not have the versions of the driver.",
            driver=", ".join(f"{name} {driver[name]}" for name in different),
            worker=", ".join(f"{name} {worker.get(name, 'is not installed')}" for name in different),
            try_=" and ".join(f"pip install {name}=={driver[name]}" for name in different) + " on every node",
        )


def user_error(error: BaseException) -> VitkitError | None:
    """Return the error of a user within what Ray raises for a worker, or None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, VitkitError):
            return seen
        cause = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__ or seen.__context__
    return None


def _reach(address: str) -> None:
    """Raise an error at once for an address where no Ray listens; Ray itself would wait for minutes."""
    match = re.fullmatch(r"(?:ray://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/]+)):(?P<port>\d{1,5})", address)
    if match is None:
        if address != "auto":
            raise _unreachable(address, "it is not HOST:PORT, ray://HOST:PORT, auto or local")
        return
    try:
        with socket.create_connection((match["v6"] or match["host"], int(match["port"])), SECONDS_TO_REACH) as opened:
            speaks = _speaks_http2(opened)
    except (OSError, OverflowError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from None
    if not speaks and os.environ.get("RAY_USE_TLS", "0") != "1":  # with TLS, no answer comes before a handshake
        raise _unreachable(address, "what listens there is not Ray (its dashboard has another port, 8265)")
    if address.startswith("ray://") and not find_spec("grpc"):
        raise ConfigError(
            f"{ADDRESS}={address} needs Ray's client, which is not installed.",
            try_=['pip install "ray[client]"', f"{ADDRESS}=HOST:6379, on a machine of the cluster's network"],
        )


def _speaks_http2(opened: socket.socket) -> bool:
    """Return whether the other side answers the beginning of a gRPC connection as gRPC does, with its settings."""
    opened.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
    answer = b""
    while len(answer) < len(_SETTINGS) and (more := opened.recv(len(_SETTINGS) - len(answer))):
        answer += more
    return len(answer) == len(_SETTINGS) and answer[3] == _SETTINGS[3]


def _connect(ray: Any, address: str) -> None:
    try:
        _init(ray, address=address)
    except Exception as error:  # ConnectionError, RuntimeError, a plain Exception: whatever Ray has for it
        raise _unreachable(address, str(error).strip().split("\n")[0] or type(error).__name__) from None


def _unreachable(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at {ADDRESS}={address}: {reason}.",
        try_=["ray status --address HOST:6379, where the cluster runs", f"unset {ADDRESS}, for a local one"],
    )


def _start(ray: Any) -> None:
    for attempt in range(1, STARTS + 1):
        try:
            _init(ray, address="local", num_cpus=cores(), include_dashboard=False)
            return
        except Exception as error:
            ray.shutdown()
            if attempt == STARTS:
                reason = str(error).strip().split("\n")[0]
                raise ConfigError(
                    f"Ray cannot start on this machine: {reason}", try_="ray start --head, which says more"
                ) from None


def _init(ray: Any, **settings: Any) -> None:
    """Call `ray.init` without its output and its signal handler.

    Its C++ prints a line about its log level, whatever that is. Its handler of SIGTERM would end the process before it
    says how to continue.
    """
    handler = signal.getsignal(signal.SIGTERM)
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _quiet(data: Any) -> Iterator[None]:
    """Leave out Ray Data's own progress and plans: there is one progress, that of the verb."""
    context, logger = data.DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        context.enable_progress_bars = before[0]
        logger.setLevel(before[1])


def _check_nodes(ray: Any) -> None:
    """Compare the versions of all nodes with the driver's before anything is computed."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def versions() -> dict[str, str]:  # within a function, so that it is sent as code: a worker may lack vitkit
        import contextlib
        from importlib import metadata

        found = {}
        for name in ("vitkit", "torch"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
        try:
            import vitkit

            found["vitkit"] = vitkit.__version__  # also of a source tree on the path
        except ImportError:
            found.pop("vitkit", None)
        return found

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
    asked = [
        ray.remote(versions)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote()
        for node in nodes
    ]
    for node, answer in zip(nodes, asked, strict=True):
        where = node["NodeManagerHostname"]
        try:
            check_versions(own_versions(), ray.get(answer), where)
        except ray.exceptions.RayError as error:
            message = f"the Ray node {where} cannot run Python of this version: {str(error).strip()[:300]}"
            raise ConfigError(message, driver=f"Python {sys.version.split()[0]}, ray {ray.__version__}") from None


def _describe(ray: Any, how: str) -> RayCluster:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    cpus = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not cpus:
        raise ConfigError("the Ray cluster has no CPU.", try_="ray start --num-cpus N on its nodes")
    if gpus:
        each = max(1, min(int(node["CPU"] // node["GPU"]) for node in nodes if node.get("GPU") and node.get("CPU")))
        models, resources = gpus, counted(gpus, "GPU")
    else:
        each = min(CORES_PER_MODEL, *cpus)
        models, resources = sum(count // each for count in cpus), counted(sum(cpus), "core")
    description = (
        f"{how}: {counted(len(nodes), 'node')}, {resources}; {counted(models, 'model')}, {counted(each, 'core')} each"
    )
    return RayCluster(description, models, each, 1 if gpus else 0)
