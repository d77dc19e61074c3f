"""The command line as a process of its own, which starts and ends without taking care of what it imports.

With torch imported, Python's own end takes half a second, and on a GPU a second, of every command: it frees each module
and each object. Files are written and children ended by then, so the system does it at once. While modules are
imported, Python's garbage collector would look through all of their objects several times: 0.2 s of `fit`.
"""

import atexit
import contextlib
import gc
import os
import sys
import threading
from typing import Any, NoReturn

from vitkit.cli import main as command_line

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
# the imports of `fit` and its report make about 400,000 objects, of which hardly any become garbage
OBJECTS_AT_START, COLLECTIONS_AT_START = 50_000, 10


def main() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    code = 1
    collect_rarely_at_first()
    try:
        command_line.main()
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # Python itself would print it, too
        sys.excepthook(type(error), error, error.__traceback__)
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    _end(code)


def collect_rarely_at_first() -> None:
    """Let the garbage collector wait for more objects in its first few collections, then run as usual."""
    usual, left = gc.get_threshold(), COLLECTIONS_AT_START

    def after_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal left
        left -= phase == "stop"
        if not left:
            gc.set_threshold(*usual)
            gc.callbacks.remove(after_collection)

    gc.callbacks.append(after_collection)
    gc.set_threshold(OBJECTS_AT_START, *usual[1:])


def _exit_code(error: SystemExit) -> int:
    """Return the code that Python ends with: none is success, and a text is printed and is a failure."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    sys.stderr.write(f"{error.code}\n")
    return 1


def _is_observed() -> bool:
    """Return whether a profiler, a debugger or coverage runs the command, and has something to do when it returns."""
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return any((sys.getprofile(), sys.gettrace(), *tools))


def _end(code: int) -> NoReturn:
    """End the process as Python begins to: wait for threads, call what was left for the end, write what is buffered."""
    if _is_observed():
        sys.exit(code)
    threads: Any = threading
    callbacks: Any = atexit  # neither call has a public name; multiprocessing ends its processes by them
    threads._shutdown()
    callbacks._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
