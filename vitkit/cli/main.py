"""The command line: which verbs there are, and how a mistake is told.

Nothing heavy is imported until a verb runs, so that help and mistakes answer at once.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import NoReturn

import tyro

from vitkit.cli.bench import bench
from vitkit.cli.check import check, shard
from vitkit.cli.cost import convert, cost
from vitkit.cli.evaluate import evaluate, probe
from vitkit.cli.export import export
from vitkit.cli.inspect import inspect
from vitkit.cli.numbers import NUMBERS
from vitkit.cli.options import exit_code
from vitkit.cli.predict import predict
from vitkit.cli.serve import serve
from vitkit.cli.training import demo, fit, pretrain, resume
from vitkit.errors import Interrupted, VitkitError, did_you_mean

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "check": check,
    "fit": fit,
    "pretrain": pretrain,
    "resume": resume,
    "evaluate": evaluate,
    "probe": probe,
    "inspect": inspect,
    "predict": predict,
    "export": export,
    "serve": serve,
    "shard": shard,
    "cost": cost,
    "convert": convert,
    "bench": bench,
}

TOGETHER = ("fit", "pretrain", "resume")  # the verbs that torchrun may start


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; a user's mistake is a message on stderr and exit code 2, never a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(_help())
        return
    if verb == "--version":
        from vitkit import __version__

        print(f"vitkit {__version__}")
        return
    if verb not in VERBS:
        _fail(f"vitkit: there is no verb {verb!r}{did_you_mean(verb, VERBS)}\n  verbs  {', '.join(VERBS)}")
    if verb not in TOGETHER and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        _fail(
            f"vitkit {verb}: several processes together are for {', '.join(TOGETHER)}.\n"
            f"  try  vitkit {verb} …, without torchrun"
        )
    logging.basicConfig(format="note     %(message)s", level=logging.WARNING)
    warnings.filterwarnings("ignore", module=r"PIL\b")  # oddities that Pillow copes with; others are told as errors
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text, and a message must not fail over them
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        tyro.cli(VERBS[verb], prog=f"vitkit {verb}", args=rest, use_underscores=False, registry=NUMBERS)
        sys.stdout.flush()  # here, where a full disk can still be told in words
    except VitkitError as error:
        _fail(f"vitkit {verb}: {error}")
    except KeyboardInterrupt as stopped:
        sys.exit(exit_code(stopped))
    except Interrupted as kept:
        print(f"vitkit {verb}: {kept}", file=sys.stderr)
        sys.exit(kept.code)
    except BrokenPipeError:  # the reader has seen enough: vitkit check … | head
        _forget_output()
        sys.exit(141)
    except RuntimeError as error:
        from vitkit.data.readers import lost_reader

        if (told := lost_reader(error)) is None:
            raise
        _fail(f"vitkit {verb}: {told}")
    except OSError as error:
        if error.errno not in FULL:
            raise
        _forget_output()
        _fail(f"vitkit {verb}: {error.filename or 'the output'} cannot be written: {error.strerror}.")


def _forget_output() -> None:
    """What is still waiting to be printed would fail once more at the very end, and not in words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    lines = [
        textwrap.fill(
            _first_sentence(function.__doc__ or ""), 80, initial_indent=f"  {verb:<9} ", subsequent_indent=" " * 12
        )
        for verb, function in VERBS.items()
    ]
    return "\n".join(
        [
            "vitkit: the Vision Transformer as real software.",
            "",
            "usage: vitkit VERB …      vitkit VERB --help",
            "",
            *lines,
            "",
            "  --version",
        ]
    )


def _first_sentence(text: str) -> str:
    """However many lines it takes."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]


def _fail(message: str) -> NoReturn:
    """Under torchrun most mistakes are found by every process; the first tells it, the others say that they agree."""
    rank = os.environ.get("RANK", "0")
    print(message if rank == "0" else f"process {rank}: {message.splitlines()[0]}", file=sys.stderr)
    sys.exit(2)
