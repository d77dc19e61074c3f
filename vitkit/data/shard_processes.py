"""Tasks that several processes take one after another; each process reports how many images it has done.

Results are files. A process that is killed takes nothing with it but its task, and all of them end when the process
that started them does, however it ends.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from vitkit.data.forking import objects_kept
from vitkit.data.sources.dataset import DataError
from vitkit.data.workers import CAN_FORK
from vitkit.errors import VitkitError
from vitkit.text import counted

Task = TypeVar("Task")
Work = Callable[[Task], Iterable[int]]  # does a task and yields the images that it has done


def run_tasks(work: Work[Task], tasks: Sequence[Task], processes: int) -> Generator[int]:
    """Do the tasks in so many processes, and yield the images that have been done; with one, in this process."""
    processes = min(processes, len(tasks))
    if processes < 2:
        for task in tasks:
            yield from work(task)
        return
    context: Any = multiprocessing.get_context("fork" if CAN_FORK else "spawn")
    following = context.Value("q", 0)  # the next task
    started: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for _ in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            pipes.append(receiver)
            arguments = (work, tasks, following, sender, os.getpid())
            process = context.Process(target=_do_tasks, args=arguments, daemon=True)
            _start(process, processes)
            started.append(process)
            sender.close()  # so that the pipe ends with the process
        yield from _received(pipes)
    finally:
        for process in started:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _start(process: BaseProcess, processes: int) -> None:
    try:
        with objects_kept():
            process.start()
    except OSError as error:  # too many processes, or no memory
        raise DataError(
            f"{counted(processes, 'process', 'processes')} cannot be started: {error.strerror or error}.",
            try_="fewer --workers",
        ) from error


def _received(pipes: Sequence[Connection]) -> Generator[int]:
    running = list(pipes)
    while running:
        for pipe in multiprocessing.connection.wait(running):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise DataError(
                    "a process that writes shards has died.",
                    try_="the same command again, which continues; fewer --workers, if memory has run out",
                ) from None
            if message is None:
                running.remove(pipe)
            elif isinstance(message, int):
                yield message
            else:
                raise _restored(*message)


def _do_tasks(work: Work[Task], tasks: Sequence[Task], following: Any, sender: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals all processes of the group; the first one ends them
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _use_one_thread()
    try:
        for number in iter(lambda: _take(following, len(tasks)), len(tasks)):
            for count in work(tasks[number]):
                sender.send(count)
                if os.getppid() != parent:
                    os._exit(1)  # it was killed, and nobody waits for the rest
        sender.send(None)
    except BrokenPipeError:
        os._exit(1)
    except BaseException as error:
        sender.send(_described(error))


def _take(following: Any, tasks: int) -> int:
    """Return the number of the next task; after the last one, the number of all, again and again."""
    with following.get_lock():
        number: int = min(following.value, tasks)
        following.value += 1
    return number


def _use_one_thread() -> None:
    """Resize with one thread in each process: a pool that was forked has no threads, and cores are taken already."""
    import torch

    torch.set_num_threads(1)


def _described(error: BaseException) -> tuple[type[BaseException], tuple[Any, ...], dict[str, list[str]]]:
    if isinstance(error, VitkitError):
        return type(error), (error.what,), error.rows
    if isinstance(error, OSError):
        return OSError, (error.errno, error.strerror, error.filename), {}
    return RuntimeError, ("".join(traceback.format_exception(error)),), {}


def _restored(kind: type[BaseException], arguments: tuple[Any, ...], rows: dict[str, list[str]]) -> BaseException:
    return kind(*arguments, **rows)
