"""The command line as a process of its own, which ends without taking apart what it has imported.

With torch imported, Python's own end takes half a second, and on a GPU a second, of every command: it frees each module
and each object. Files are written and children ended by then, so the system does it at once.
"""

import atexit
import contextlib
import os
import sys

from vitkit.cli import main as command_line

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class _Exit:
    """The last callback of the process: the one that was registered first."""

    code = 1  # of an exception that nobody handled

    def __call__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(self.code)


def main() -> None:
    """Run the command line; what others register to be done at the end is done before the process ends."""
    ending = _Exit()
    atexit.register(ending)
    try:
        command_line.main()
        ending.code = 0
    except SystemExit as error:
        ending.code = _exit_code(error)
        raise
    except KeyboardInterrupt:  # before the verb began, which has its own answer
        ending.code = INTERRUPTED
        raise


def _exit_code(error: SystemExit) -> int:
    """Return the code that Python ends with: none is success, and a text is printed and is a failure."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1
