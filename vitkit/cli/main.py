"""The command line: parse the verb, run it and print errors.

Nothing heavy is imported until a verb runs, so that help and error messages appear at once.
"""

import contextlib
import errno
import inspect
import re
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NoReturn

import tyro

from vitkit import messages
from vitkit.cli import options
from vitkit.cli.global_options import GLOBAL_HELP, take_global_options
from vitkit.cli.other_tools import unknown_option
from vitkit.cli.standard_streams import LASTING, OutputStream, finish, guarded_streams
from vitkit.errors import Interrupted, VitkitError, did_you_mean
from vitkit.launcher import Launch, launch, process_rank
from vitkit.storage.repeats import describe_repeats, repeated_requests
from vitkit.text import printable
from vitkit.train.signals import exit_code

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)

VERBS = (
    "demo check fit pretrain resume evaluate probe inspect predict embed export serve shard list cost convert bench "
    "grid paper".split()
)
DISTRIBUTED = ("fit", "pretrain", "resume")  # the verbs that run in several processes together
IN_SHARDS = ("predict", "embed", "shard")  # the verbs whose processes share a job, each on its own
MORE_HELP = (
    "Every verb, before it or after it:",
    "  -q, --quiet               print results and errors only",
    "  -v, --verbose             more decisions, the time, and tracebacks of errors",
    "  --log-format plain|json   form of decisions, notes, warnings and progress",
    "",
    "Exit codes:",
    "  0    done",
    "  1    check has found problems; serve has left requests without an answer",
    "  2    a mistake in the command, a setting or the data, or a full disk",
    "  3    more images failed than --max-failed allows",
    "  130  stopped by Ctrl-C        143  stopped by SIGTERM",
    "",
    "docs/command-line.md describes exit codes, --json and environment variables.",
)
SYNONYMS = {  # the words that other tools use
    "fit": "train finetune fine-tune tune",
    "resume": "continue restart",
    "evaluate": "eval val validate test score",
    "probe": "knn linear fewshot few-shot",
    "predict": "classify infer inference",
    "embed": "features vectors embeddings encode",
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
    command = f"vitkit {arguments[0]}" if arguments and arguments[0] in VERBS else "vitkit"
    with guarded_streams() as output:
        try:
            _run(arguments, output)
        except SystemExit as ended:
            if not (ended.code and output.lasting):  # the error of a run was the first
                finish(output, command)
            raise
        except OSError as error:
            if error is not output.error:
                raise
        finish(output, command)


def _run(arguments: list[str], output: OutputStream) -> None:
    started = time.monotonic()
    try:
        arguments = take_global_options(arguments)
    except VitkitError as error:
        _fail("vitkit", error)
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
        _fail("vitkit", f"there is no verb {verb!r}{suggestion}\n  verbs  {', '.join(VERBS)}")
    command = f"vitkit {verb}"
    output.lasting = verb in LASTING and not {"-h", "--help"}.intersection(rest)
    several = (*DISTRIBUTED, *IN_SHARDS)
    if verb not in several and (here := _launch(command)).launcher is not None and here.world_size > 1:
        _fail(
            command,
            f"only {', '.join(several)} run in several processes.\n  try  {command} …, without {here.launcher.command}",
        )
    warnings.filterwarnings("ignore", module=r"PIL\b")  # oddities that Pillow copes with; others are errors
    for word in rest:  # a file whose name looks like an option; the parser would print it as it is
        if word.startswith("-") and not word.isprintable():
            _fail(command, f"there is no option {printable(word)}\n  try  ./{printable(word)}, if it is a file")
    function = verb_function(verb)
    rest = options.replace_renamed(rest, RENAMED.get(verb, {}))
    if problem := unknown_option(verb, function, rest):
        _fail(command, f"{problem}\n  try  {command} --help, for all options")
    try:
        with _report_repeats():
            tyro.cli(
                function,
                prog=command,
                description=f"{inspect.cleandoc(function.__doc__ or '')}\n\n{GLOBAL_HELP}",
                args=rest,
                use_underscores=False,
                registry=options.PARSERS,
            )
        if messages.is_verbose():
            messages.say("time", f"{command} took {time.monotonic() - started:.1f} s", file=sys.stderr)
    except VitkitError as error:
        _fail(command, error)
    except KeyboardInterrupt as stopped:
        sys.exit(exit_code(stopped))
    except Interrupted as kept:
        if verb not in DISTRIBUTED or process_rank() == 0:
            messages.error(command, str(kept), exit_code=kept.code)
        sys.exit(kept.code)
    except Exception as error:
        if error is output.error:
            raise
        if (message := _explain(error)) is not None:
            _fail(command, message)
        if not messages.in_json():
            raise
        text = f"{type(error).__name__}: {error}"
        messages.error(command, text, exit_code=1, traceback="".join(traceback.format_exception(error)))
        sys.exit(1)


def _launch(command: str) -> Launch:
    try:
        return launch()
    except VitkitError as error:
        _fail(command, error)


@contextlib.contextmanager
def _report_repeats() -> Iterator[None]:
    """Say how many requests to stores were repeated, however the verb ends."""
    before = repeated_requests()
    try:
        yield
    finally:
        if number := repeated_requests() - before:
            messages.say("requests", describe_repeats(number), file=sys.stderr, repeated=number)


def _explain(error: Exception) -> VitkitError | str | None:
    """Return what has happened where the machine is to blame: a dead data worker, a limit, a full disk; else None."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "memory has run out.\n  try  a smaller --batch, fewer --workers, or a higher limit (ulimit -v)"
    if "can't start new thread" in str(error):
        return "no further thread can be started.\n  try  a higher limit (ulimit -u, or --pids-limit of a container)"
    if isinstance(error, RuntimeError):
        from vitkit.data.workers import lost_worker

        return lost_worker(error)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}."
    if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
        return f"{error.filename or 'a file'} cannot be opened: {error.strerror}.\n  try  a higher limit (ulimit -n)"
    return None


def verb_function(verb: str) -> Callable[..., None]:
    """Return the function of a verb, which stands in a file of the same name."""
    function: Callable[..., None] = getattr(import_module(f"vitkit.cli.{verb}"), verb)
    return function


def _help() -> str:
    sentences = {verb: _first_sentence(verb_function(verb).__doc__ or "") for verb in VERBS}
    lines = [textwrap.fill(f"  {verb:<9} {text}", 80, subsequent_indent=" " * 12) for verb, text in sentences.items()]
    usage = "vitkit: the Vision Transformer as real software.\n\nusage: vitkit VERB …      vitkit VERB --help\n"
    return "\n".join([usage, *lines, "", "  --version", "", *MORE_HELP])


def _first_sentence(text: str) -> str:
    """Return the first sentence of a docstring on one line."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]


def _fail(command: str, error: VitkitError | str) -> NoReturn:
    """Print an error and exit with its code, 2 as a rule; of several processes, only rank zero prints all of it."""
    rank, code = process_rank(), error.exit_code if isinstance(error, VitkitError) else 2
    fields = {}
    if isinstance(error, VitkitError) and messages.is_verbose():
        fields = {"traceback": "".join(traceback.format_exception(error))}
    if rank == 0:
        messages.error(command, str(error), exit_code=code, **fields)
    else:
        messages.error(f"process {rank}: {command}", str(error).splitlines()[0], exit_code=code, **fields)
    sys.exit(code)
