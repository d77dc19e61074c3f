"""Messages about the work, apart from its results: decisions, notes, warnings and progress, as lines or as JSON.

The command line sets how many there are (`--quiet`, `--verbose`) and their form (`--log-format json`), once for the
process. Whatever is printed besides a verb's results goes through here or through the logger "vitkit".
"""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, Literal, TextIO, get_args

from vitkit.text import printable, printable_lines

Verbosity = Literal["quiet", "normal", "verbose"]
LogFormat = Literal["plain", "json"]
VERBOSITIES: tuple[str, ...] = get_args(Verbosity)
LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)
RESULTS = ("score", "report", "serving")  # the labels that --quiet keeps: what the user has waited for
WARNING = "warning"  # the label of a message that something may be wrong
COLUMN = 9  # width of the labels


@dataclass
class MessageSettings:
    verbosity: Verbosity = "normal"
    log_format: LogFormat = "plain"


_settings = MessageSettings()


def configure(verbosity: Verbosity = "normal", log_format: LogFormat = "plain") -> None:
    """Set the amount and the form of all messages of this process, those of Python's logging included."""
    _settings.verbosity, _settings.log_format = verbosity, log_format
    root = logging.getLogger()
    if not root.handlers:  # as logging.basicConfig: a program or a test may have its own
        root.addHandler(MessageHandler())
    logging.getLogger("vitkit").setLevel(logging.INFO if verbosity == "verbose" else logging.NOTSET)
    logging.captureWarnings(log_format == "json")


def is_quiet() -> bool:
    return _settings.verbosity == "quiet"


def is_verbose() -> bool:
    return _settings.verbosity == "verbose"


def in_json() -> bool:
    return _settings.log_format == "json"


def say(label: str, text: str, *, file: TextIO | None = None, **fields: Any) -> None:
    """Print a decision, or a result of a run, under its label; `fields` are further values for JSON.

    `--quiet` leaves the results only.
    """
    if is_quiet() and label not in RESULTS:
        return
    if in_json():
        write_json("warning" if label == WARNING else "info", label, text, file=file, **fields)
    else:
        print_line(f"{label:<{COLUMN}} {text}", file=file)


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print one line for people, of a message or of a verb's result.

    A name in it can neither command the terminal nor begin a line of its own.
    """
    print(printable(text), file=file or sys.stdout, flush=True)


def progress_line(what: str, text: str, **fields: Any) -> None:
    """Print how far the work is, on stderr; `text` is all of the plain line."""
    if is_quiet():
        return
    if in_json():
        write_json("info", what, text, file=sys.stderr, **fields)
    else:
        print_line(text, file=sys.stderr)


def error(source: str, text: str, *, exit_code: int, traceback: str = "") -> None:
    """Print an error of a command on stderr, however quiet it is."""
    if in_json():
        more = {"traceback": traceback} if traceback else {}
        write_json("error", source, text, file=sys.stderr, exit_code=exit_code, **more)
    else:
        print(printable_lines(f"{traceback}{source}: {text}"), file=sys.stderr, flush=True)


def write_json(level: str, label: str, text: str, *, file: TextIO | None = None, **fields: Any) -> None:
    """Write one message as a line of JSON; ASCII, because file names need not be text."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    record = {"time": time, "level": level, "label": label, "text": text, **fields}
    print(json.dumps(record, default=str), file=file or sys.stdout, flush=True)


class MessageHandler(logging.Handler):
    """The handler of Python's logging: notes and warnings on stderr, in the chosen form."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.levelno < logging.ERROR and is_quiet():
                return
            trace = "".join(format_exception(record.exc_info[1])) if record.exc_info else ""
            label = "detail" if record.levelno < logging.WARNING else "note"
            if in_json():
                fields = {"traceback": trace} if trace else {}
                write_json(record.levelname.lower(), label, record.getMessage(), file=sys.stderr, **fields)
            else:
                show = printable if record.name == "vitkit" else printable_lines  # other libraries write several lines
                print(show(f"{label:<{COLUMN}} {record.getMessage()}"), file=sys.stderr)
                print(printable_lines(trace), end="", file=sys.stderr, flush=True)
        except Exception:  # what logging does itself: a message must not end the work
            self.handleError(record)
