"""The command line: parse the verb, run it and print errors.

Nothing heavy is imported until a verb runs, so that help and error messages appear at once.
"""

import errno
import io
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import tyro

from vitkit.cli.options import NUMBER_PARSERS, exit_code, replace_renamed
from vitkit.errors import Interrupted, VitkitError, did_you_mean

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

VERBS = (
    "demo check fit pretrain resume evaluate probe inspect predict export serve shard list cost convert bench".split()
)
DISTRIBUTED = ("fit", "pretrain", "resume")  # the verbs that torchrun may start
SYNONYMS = {  # the words that other tools use
    "fit": "train finetune fine-tune tune",
    "resume": "continue restart",
    "evaluate": "eval val validate test score",
    "probe": "knn linear fewshot few-shot",
    "predict": "classify infer inference",
    "inspect": "attention visualize visualise",
    "export": "onnx",
    "serve": "deploy",
    "check": "verify",
    "cost": "info summary flops params",
    "bench": "benchmark",
}
RENAMED = {"export": {"--pictures": "--images"}}  # old options, accepted for one release


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; print a user's mistake on stderr and exit with code 2, never with a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(_help())
        return
    if verb == "--version":
        from vitkit import __version__

        print(f"vitkit {__version__}")
        return
    if verb not in VERBS:
        meant = [ours for ours, theirs in SYNONYMS.items() if verb.lower().replace("_", "-") in theirs.split()]
        suggestion = f"; did you mean {meant[0]}?" if meant else did_you_mean(verb, VERBS)
        _fail(f"vitkit: there is no verb {verb!r}{suggestion}\n  verbs  {', '.join(VERBS)}")
    if verb not in DISTRIBUTED and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        _fail(
            f"vitkit {verb}: only {', '.join(DISTRIBUTED)} run in several processes.\n"
            f"  try  vitkit {verb} …, without torchrun"
        )
    logging.basicConfig(format="note     %(message)s", level=logging.WARNING)
    warnings.filterwarnings("ignore", module=r"PIL\b")  # oddities that Pillow copes with; others are errors
    for stream in (sys.stdout, sys.stderr):  # file names need not be valid text, and a message must not fail over them
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    options = replace_renamed(rest, RENAMED.get(verb, {}))
    try:
        tyro.cli(
            verb_function(verb), prog=f"vitkit {verb}", args=options, use_underscores=False, registry=NUMBER_PARSERS
        )
        sys.stdout.flush()  # so that a full disk is handled below
    except VitkitError as error:
        _fail(f"vitkit {verb}: {error}")
    except KeyboardInterrupt as stopped:
        sys.exit(exit_code(stopped))
    except Interrupted as kept:
        print(f"vitkit {verb}: {kept}", file=sys.stderr)
        sys.exit(kept.code)
    except BrokenPipeError:  # the consumer has closed the pipe: vitkit check … | head
        _discard_output()
        sys.exit(141)
    except RuntimeError as error:
        from vitkit.data.workers import lost_worker

        if (message := lost_worker(error)) is None:
            raise
        _fail(f"vitkit {verb}: {message}")
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _discard_output()
        _fail(f"vitkit {verb}: {error.filename or 'the output'} cannot be written: {error.strerror}.")


def _discard_output() -> None:
    """Drop buffered output, which would fail again at exit, with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def verb_function(verb: str) -> Callable[..., None]:
    """Return the function of a verb, which stands in a file of the same name."""
    function: Callable[..., None] = getattr(import_module(f"vitkit.cli.{verb}"), verb)
    return function


def _help() -> str:
    sentences = {verb: _first_sentence(verb_function(verb).__doc__ or "") for verb in VERBS}
    lines = [textwrap.fill(f"  {verb:<9} {text}", 80, subsequent_indent=" " * 12) for verb, text in sentences.items()]
    usage = "vitkit: the Vision Transformer as real software.\n\nusage: vitkit VERB …      vitkit VERB --help\n"
    return "\n".join([usage, *lines, "", "  --version"])


def _first_sentence(text: str) -> str:
    """Return the first sentence of a docstring on one line."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]


def _fail(message: str) -> NoReturn:
    """Print an error and exit with code 2; under torchrun, only rank zero prints all of it."""
    rank = os.environ.get("RANK", "0")
    print(message if rank == "0" else f"process {rank}: {message.splitlines()[0]}", file=sys.stderr)
    sys.exit(2)
