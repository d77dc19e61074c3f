"""The rendezvous of distributed training: all ranks report to a store on rank 0, and who does not is named in time.

torch's own waits for up to 30 minutes without a word, and then says how many ranks are missing, but not which.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta

import torch
from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from vitkit.errors import ConfigError, VitkitError
from vitkit.launcher import Launch
from vitkit.messages import say

TIMEOUT = 300.0  # seconds that ranks wait for each other; VITKIT_RENDEZVOUS_TIMEOUT says otherwise
PATIENCE = 15.0  # seconds until rank zero says whom it is waiting for
POLL = 0.1
SHOWN = 16  # ranks in a message
LATER = timedelta(minutes=30)  # torch's own patience, for groups that are made during training

Verdict = tuple[str, dict[str, list[str]]] | None  # an error's sentence and details; None: all have arrived


class RendezvousError(VitkitError):
    """Processes of a run that did not meet."""


def meet(here: Launch, device: torch.device, timeout: float | None = None) -> Store:
    """Wait for all ranks and return their store; raise on all of them if one is missing or two have the same GPU."""
    deadline = time.monotonic() + (_timeout() if timeout is None else timeout)
    store = _open_store(here, deadline)
    if here.rank == 0:
        attempt = uuid.uuid4().hex
        own = PrefixStore(attempt, store)
        own.set(_arrival(0), _describe_device(device))
        verdict = _await_all(here, store, attempt, deadline)
        own.set("verdict", json.dumps(verdict))
        if verdict:
            _await_replies(here, own)  # the store ends with this process
    else:
        own = PrefixStore(_await_attempt(here, store, deadline), store)
        own.set(_arrival(here.rank), _describe_device(device))
        verdict = _await_verdict(here, own, deadline)
    if verdict:
        what, details = verdict
        raise RendezvousError(what, **details)
    store.set_timeout(LATER)
    return PrefixStore("training", own)


def _open_store(here: Launch, deadline: float) -> Store:
    """Open the store of rank 0, or that of torchrun's agent, to which every rank is a client."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = here.rank == 0 and not agent
    try:
        if not serves and not agent:
            _await_port(here, deadline)
        return TCPStore(
            here.address,
            here.port,
            here.world_size,
            is_master=serves,
            timeout=timedelta(seconds=max(deadline - time.monotonic(), 1.0)),
            wait_for_workers=False,
        )
    except (DistError, RuntimeError, ValueError, OSError) as error:
        address = f"{here.address}:{here.port}"
        if serves:
            raise RendezvousError(
                f"rank 0 cannot listen at {address}, where the other ranks would meet it.",
                found=str(error).splitlines()[0],
                try_="export MASTER_PORT=PORT with another port, the same for all ranks",
            ) from error
        raise RendezvousError(
            f"rank {here.rank} of {here.world_size} could not reach rank 0 at {address}.",
            found=getattr(error, "strerror", None) or str(error).splitlines()[0],
            try_=[
                "the log of rank 0: it may have ended, or may be at another address",
                "export MASTER_ADDR=HOST MASTER_PORT=PORT, if that address is wrong",
            ],
        ) from error


def _await_port(here: Launch, deadline: float) -> None:
    """Wait until rank 0 listens; torch's client would print a C++ stack trace for every attempt."""
    say_at = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((here.address, here.port), timeout=5.0).close()
        except OSError:
            if time.monotonic() >= deadline:
                raise
            if here.rank == 1 and time.monotonic() > say_at:  # one rank says it
                say("waiting", f"for rank 0 at {here.address}:{here.port}", file=sys.stderr)
                say_at = deadline
            time.sleep(POLL)
        else:
            return


def _await_attempt(here: Launch, store: Store, deadline: float) -> str:
    """Return the name that rank 0 has given to this attempt.

    torchrun's store outlives the processes that it restarts, with all that they wrote: the answer of rank 0 is to a
    greeting that no earlier process can have sent.
    """
    greeting = uuid.uuid4().hex
    answer = f"attempt/{greeting}"
    try:
        store.set(_hello(here.rank), greeting)
        store.wait([answer], timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
        return str(store.get(answer).decode())
    except DistError as error:
        raise RendezvousError(
            f"rank {here.rank} of {here.world_size} has no answer of rank 0 at {here.address}:{here.port}.",
            try_="the log of rank 0: it may have ended",
        ) from error


def _answer(ranks: list[int], store: Store, attempt: str) -> None:
    """Tell the ranks that have greeted rank 0 the name of this attempt."""
    for rank in ranks:
        if store.check([_hello(rank)]):
            store.set(f"attempt/{store.get(_hello(rank)).decode()}", attempt)


def _await_all(here: Launch, store: Store, attempt: str, deadline: float) -> Verdict:
    """Wait on rank 0 until every rank has reported its device."""
    own = PrefixStore(attempt, store)
    missing, started, announced = list(range(here.world_size)), time.monotonic(), False
    while missing := [rank for rank in missing if not own.check([_arrival(rank)])]:
        _answer(missing, store, attempt)
        if time.monotonic() >= deadline:
            return (
                f"{_name(missing)} of {here.world_size} did not reach rank 0 at {here.address}:{here.port} within "
                f"{time.monotonic() - started:.0f} s.",
                {"try": _advice(here)},
            )
        if not announced and time.monotonic() - started > PATIENCE:
            announced = True
            text = f"for {_name(missing)} of {here.world_size}, at {here.address}:{here.port}"
            say("waiting", text, file=sys.stderr)
        time.sleep(POLL)
    return _shared_device({rank: own.get(_arrival(rank)).decode() for rank in range(here.world_size)})


def _await_verdict(here: Launch, store: Store, deadline: float) -> Verdict:
    left = max(deadline - time.monotonic(), 0.0) + 10.0  # rank 0 is the one to decide
    try:
        store.wait(["verdict"], timedelta(seconds=left))
        verdict: Verdict = json.loads(store.get("verdict"))
        store.set(_reply(here.rank), "")
    except DistError:
        address = f"{here.address}:{here.port}"
        return f"rank {here.rank} of {here.world_size} has lost rank 0 at {address}.", {"try": ["the log of rank 0"]}
    return verdict


def _await_replies(here: Launch, store: Store) -> None:
    """Wait a moment on rank 0 until the ranks that have arrived know why the run cannot begin."""
    until = time.monotonic() + 5.0
    others = [rank for rank in range(1, here.world_size) if store.check([_arrival(rank)])]
    while time.monotonic() < until and not store.check([_reply(rank) for rank in others]):
        time.sleep(POLL)


def _advice(here: Launch) -> list[str]:
    assert here.launcher is not None
    advice = [
        f"the logs of these ranks: they may have ended, or cannot reach {here.address}:{here.port}",
        "export MASTER_ADDR=HOST MASTER_PORT=PORT, if that address is wrong",
        "export VITKIT_RENDEZVOUS_TIMEOUT=SECONDS, if they start later",
    ]
    if here.launcher.unset:
        advice.append(f"{here.launcher.unset}, if {here.launcher.command} has not started this command")
    return advice


def _shared_device(devices: Mapping[int, str]) -> Verdict:
    """Return an error if two ranks have the same GPU, where NCCL would fail or, with others, all would slow down."""
    owners: dict[str, list[int]] = {}
    for rank, device in devices.items():
        if device:
            owners.setdefault(device, []).append(rank)
    for device, ranks in owners.items():
        if len(ranks) > 1:
            return (
                f"{_name(ranks)} have the same GPU, {device}.",
                {"try": ["as many processes on a node as it has GPUs; with srun, --gpus-per-task=1"]},
            )
    return None


def _describe_device(device: torch.device) -> str:
    """Return the host and the identity of a GPU; "" for a CPU, which processes share."""
    if device.type != "cuda":
        return ""
    return f"{torch.cuda.get_device_properties(device).uuid} of {socket.gethostname()}"


def _timeout() -> float:
    text = os.environ.get("VITKIT_RENDEZVOUS_TIMEOUT") or str(TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"VITKIT_RENDEZVOUS_TIMEOUT is {text!r}, and a number of seconds is needed")
    return seconds


def _hello(rank: int) -> str:
    return f"hello/{rank}"


def _arrival(rank: int) -> str:
    return f"arrived/{rank}"


def _reply(rank: int) -> str:
    return f"reply/{rank}"


def _name(ranks: list[int]) -> str:
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:SHOWN]))}{more}"
