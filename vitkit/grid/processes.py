"""Trials in several processes, one for each device, or for each job of a CPU."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from vitkit.errors import VitkitError
from vitkit.grid.arm import Trial
from vitkit.grid.outcome import read_outcome
from vitkit.grid.trial_runner import Report, TrialRunner


class LostProcess(VitkitError):
    """A process of the comparison that ended without an answer."""


def run_in_processes(trials: Sequence[Trial], runner: TrialRunner, devices: Sequence[str], report: Report) -> None:
    """Run the trials, each in the first process that is free and once what it needs is done."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    free: list[tuple[BaseProcess, Connection]] = []
    busy: dict[Connection, tuple[BaseProcess, Trial]] = {}
    try:
        for device in devices[: len(trials)]:
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=_serve, args=(theirs, runner.folder, device, device == "cpu"), daemon=False
            )
            process.start()
            theirs.close()
            free.append((process, ours))
        waiting = list(trials)
        while waiting or busy:
            running = [trial for _, trial in busy.values()]
            while free and (trial := _next_ready(waiting, running)):
                process, connection = free.pop()
                waiting.remove(trial)
                connection.send(trial)
                busy[connection] = (process, trial)
                running.append(trial)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                process, trial = busy.pop(ready)
                try:
                    answer = ready.recv()
                except EOFError:
                    raise LostProcess(
                        f"the process that ran the arm {trial.arm.name!r} with seed {trial.seed} ended without a word",
                        such_as="the kernel stops a process that takes too much memory",
                        then="the same command goes on where it stopped",
                    ) from None
                if isinstance(answer, BaseException):
                    raise answer
                report(trial, read_outcome(runner.path(trial)), answer)
                free.append((process, ready))
    finally:
        for process, connection in [*free, *((process, ready) for ready, (process, _) in busy.items())]:
            connection.close()
            process.terminate()
            process.join()


def _next_ready(waiting: Sequence[Trial], running: Sequence[Trial]) -> Trial | None:
    """Return the first trial whose needed one is done."""
    return next((trial for trial in waiting if trial.needs not in [*waiting, *running]), None)


def _serve(connection: Connection, folder: Any, device: str, single_thread: bool) -> None:
    """Run trials until the other side closes; end at once if it dies, so that no run stays locked."""
    import torch

    from vitkit import messages

    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    messages.configure("quiet")
    if single_thread:
        torch.set_num_threads(1)
    runner = TrialRunner(folder, device)
    while True:
        try:
            trial = connection.recv()
        except EOFError:
            return
        try:
            connection.send(runner.run(trial))
        except VitkitError as error:
            connection.send(error)
