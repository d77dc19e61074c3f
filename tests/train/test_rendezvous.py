"""The ranks of a run meet in time, or each of them learns who is missing; here, each rank is a thread."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import TCPStore

from vitkit.errors import ConfigError
from vitkit.launcher import SRUN, Launch
from vitkit.train import rendezvous
from vitkit.train.rendezvous import RendezvousError, meet

CPU = torch.device("cpu")


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def meet_all(ranks: list[int], port: int, world_size: int, timeout: float = 30.0) -> dict[int, object]:
    """Return the store of each rank, or its error."""

    def one(rank: int) -> object:
        here = Launch(launcher=SRUN, rank=rank, world_size=world_size, address="127.0.0.1", port=port)
        try:
            return meet(here, CPU, timeout)
        except RendezvousError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return dict(zip(ranks, threads.map(one, ranks), strict=True))


def test_ranks_that_meet_share_a_store(port: int):
    stores = meet_all([0, 1, 2], port, 3)
    stores[2].set("said", "by two")  # type: ignore[attr-defined]
    assert [store.get("said") for store in stores.values()] == [b"by two"] * 3  # type: ignore[attr-defined]


def test_processes_that_torchrun_restarts_find_nothing_of_the_ones_before_in_its_store(
    port: int, monkeypatch: pytest.MonkeyPatch
):
    """The agent's store lives on; stale addresses in it were connections to ports that nobody listens at."""
    agent = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for attempt in ("first", "second"):
        stores = meet_all([0, 1], port, 2)
        assert not stores[1].check(["address"])  # type: ignore[attr-defined]
        stores[0].set("address", attempt)  # type: ignore[attr-defined]
        assert stores[1].get("address") == attempt.encode()  # type: ignore[attr-defined]
    errors = meet_all([1], port, 2, timeout=1.0)  # rank 0 of the third attempt never comes
    assert "rank 1 of 2 has no answer of rank 0" in str(errors[1])
    del agent


def test_ranks_that_do_not_come_are_named_in_time_on_all_others(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.5)
    started = time.monotonic()
    errors = meet_all([0, 2], port, 4, timeout=1.5)
    assert time.monotonic() - started < 10  # and not half an hour
    for error in errors.values():
        assert isinstance(error, RendezvousError)
        assert f"ranks 1, 3 of 4 did not reach rank 0 at 127.0.0.1:{port} within" in error.what
        assert "VITKIT_RENDEZVOUS_TIMEOUT" in str(error)
    assert f"waiting   for ranks 1, 3 of 4, at 127.0.0.1:{port}" in capsys.readouterr().err


def test_without_rank_zero_the_others_name_its_address(port: int, capfd: pytest.CaptureFixture[str]):
    (error,) = meet_all([1], port, 2, timeout=1.0).values()
    assert isinstance(error, RendezvousError)
    assert f"rank 1 of 2 could not reach rank 0 at 127.0.0.1:{port}." in str(error)
    assert "Connection refused" in str(error)
    assert "frame #" not in capfd.readouterr().err  # torch's own client prints a C++ stack trace


def test_a_port_that_is_taken_is_an_error_that_names_the_variable_to_set():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        number = taken.getsockname()[1]
        (error,) = meet_all([0], number, 2, timeout=1.0).values()
    assert isinstance(error, RendezvousError)
    assert f"rank 0 cannot listen at 127.0.0.1:{number}" in str(error)
    assert "export MASTER_PORT=PORT" in str(error)


def test_two_ranks_with_one_gpu_are_an_error_on_all_ranks(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "_describe_device", lambda device: "GPU-12ab of gpu02")
    errors = meet_all([0, 1], port, 2)
    for error in errors.values():
        assert isinstance(error, RendezvousError)
        assert error.what == "ranks 0, 1 have the same GPU, GPU-12ab of gpu02."


def test_the_seconds_to_wait_are_a_variable(port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VITKIT_RENDEZVOUS_TIMEOUT", "0.5")
    (error,) = meet_all([0], port, 2, timeout=None).values()  # type: ignore[arg-type]
    assert "rank 1 of 2 did not reach rank 0" in str(error)
    monkeypatch.setenv("VITKIT_RENDEZVOUS_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="'soon', and a number of seconds is needed"):
        meet_all([0], port, 2, timeout=None)  # type: ignore[arg-type]
