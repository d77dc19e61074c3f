"""Processes that run trials, one for each device, or several on a device; they live as long as there may be trials."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.grid.arm import Trial
from vitkit.grid.outcome import read_outcome
from vitkit.grid.trial_runner import Report, TrialRunner


class LostProcess(VitkitError):
    """A process of the comparison that ended without an answer."""


def _lost(trial: Trial) -> LostProcess:
    return LostProcess(
        f"the process that ran the arm {trial.arm.name!r} with seed {trial.seed} ended without a word",
        such_as="the kernel stops a process that takes too much memory",
        then="the same command goes on where it stopped",
    )


class TrialProcesses:
    """The processes of a comparison's folder, each with the data that its earlier trials have opened."""

    def __init__(self, folder: Path, devices: Sequence[str]):
        self.folder, self.devices = folder, devices
        self.free: list[tuple[BaseProcess, Connection]] = []
        self.busy: dict[Connection, tuple[BaseProcess, Trial]] = {}

    def run(self, trials: Sequence[Trial], runner: TrialRunner, report: Report) -> None:
        """Run the trials, each in the first process that is free and once what it needs is done."""
        self._start(min(len(self.devices), len(trials)))
        waiting = list(trials)
        while waiting or self.busy:
            running = [trial for _, trial in self.busy.values()]
            while self.free and (trial := _next_ready(waiting, running)):
                process, connection = self.free.pop()
                waiting.remove(trial)
                try:
                    connection.send(trial)
                except OSError:
                    raise _lost(trial) from None
                self.busy[connection] = (process, trial)
                running.append(trial)
            for ready in wait(list(self.busy)):
                assert isinstance(ready, Connection)
                process, trial = self.busy.pop(ready)
                try:
                    answer = ready.recv()
                except (EOFError, OSError):
                    raise _lost(trial) from None
                self.free.append((process, ready))
                if isinstance(answer, BaseException):
                    raise answer
                report(trial, read_outcome(runner.path(trial)), answer)

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process, connection in [*self.free, *((process, ready) for ready, (process, _) in self.busy.items())]:
            connection.close()
            process.terminate()
            process.join()
        self.free, self.busy = [], {}

    def _start(self, count: int) -> None:
        """Start processes until there are so many, which divide the cores of this one among them all."""
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        for number in range(len(self.free), count):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=_serve,
                args=(theirs, self.folder, self.devices, number),
                daemon=False,
            )
            process.start()
            theirs.close()
            self.free.append((process, ours))


def share_of_cores(number: int, processes: int) -> set[int]:
    """Return the cores of one of the processes; none where there are fewer cores, or none are known."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return set(cores[number::processes]) if len(cores) >= processes else set()


def _next_ready(waiting: Sequence[Trial], running: Sequence[Trial]) -> Trial | None:
    """Return the first trial whose needed one is done."""
    return next((trial for trial in waiting if trial.needs not in [*waiting, *running]), None)


def _serve(connection: Connection, folder: Path, devices: Sequence[str], number: int) -> None:
    """Run trials until the other side closes; end at once if it dies, so that no run stays locked."""
    import torch

    from vitkit import messages
    from vitkit.devices import share_memory

    device, cores = devices[number], share_of_cores(number, len(devices))
    if cores:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))
    if device == "cpu":
        torch.set_num_threads(1)
    jobs = devices.count(device)
    share_memory(on_gpu=jobs, on_host=len(devices))
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    messages.configure("quiet")
    runner = TrialRunner(folder, device, jobs)
    while True:
        try:
            trial = connection.recv()
        except EOFError:
            return
        answer: Any
        try:
            answer = runner.run(trial)
        except VitkitError as error:
            answer = error
        connection.send(answer)
