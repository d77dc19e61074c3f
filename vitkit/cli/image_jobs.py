"""Jobs over image files, as `predict` and `embed` run them: their options, their last lines and their exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from vitkit import messages
from vitkit.cli.options import option, print_json
from vitkit.errors import TOO_MANY_FAILED, Interrupted
from vitkit.storage.urls import redacted
from vitkit.text import counted
from vitkit.train.signals import exit_code, stop_cleanly_on_sigterm

if TYPE_CHECKING:
    import torch

    from vitkit.predict.failures import Failures

# choosing a fast engine takes as long as predicting about so many images exactly: measured for Ti/16 on two busy cores,
# estimated for a GPU; a fixed number, so that a job which is continued decides as it did before
MIN_IMAGES_FOR_FAST = {"cpu": 1_000, "cuda": 10_000}

SECONDS_TO_SAY = 1.0  # from which on the time for listing images is printed

Images = Annotated[
    Positional[tuple[str, ...]],
    option("images, folders of them, patterns in quotes, or - for a list of them on standard input", "IMAGES…"),
]
Overwrite = Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace FILE and start over")]
Fast = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    arg(
        help="the fastest engine of this machine, where the images are many enough to choose one; prints which, "
        "and how closely it agrees"
    ),
]


def fast_engine_pays(device: torch.device, images: int) -> bool:
    """Return whether so many images are worth the choice of a fast engine."""
    return images >= MIN_IMAGES_FOR_FAST.get(device.type, 0)


def list_images(sources: Sequence[str]) -> list[str]:
    """Return the names of the images, and say how many there are where finding them took its time."""
    from vitkit.data.sources.image_paths import find_image_names
    from vitkit.progress import show_count

    started = time.monotonic()
    names = find_image_names(sources, show_count("listing", "files"))
    seconds = time.monotonic() - started
    if seconds >= SECONDS_TO_SAY:
        messages.say("listing", f"{counted(len(names), 'image')} found in {seconds:.1f} s", file=sys.stderr)
    return names


@contextmanager
def resumable(out: str, *, overwrite: bool) -> Iterator[None]:
    """Stop on Ctrl-C and SIGTERM with a message that says how to continue."""
    from vitkit.predict.output_file import OutputFile

    output = OutputFile.of(out)
    if output.url is not None:
        text = f"{output.journal} holds the rows until they are uploaded to {redacted(output.url)} as one file"
        messages.say("journal", text, file=sys.stderr)
    try:
        with stop_cleanly_on_sigterm():
            yield
    except KeyboardInterrupt as stopped:
        command = "the same command, without --overwrite," if overwrite else "the same command"
        raise Interrupted(
            f"stopped; {command} continues after the last row of {output.journal}", exit_code(stopped)
        ) from None


def print_written(verb: str, out: str, images: int, before: int, failures: Failures, *, json: bool, note: str) -> None:
    """Print what was written: the file, its images, those from an earlier call, and those that failed."""
    if json:
        result = {"out": redacted(out), "images": images, "there_already": before, "unreadable": failures.failed}
        print_json(verb, {**result, "failed": failures.failed, "failures": failures.first})
        return
    kept = f", {before:,} of them from an earlier call" if before else ""
    messages.print_line(
        f"written  {redacted(out)}: {counted(images, 'image')}{note}{kept}; {failures.failed:,} could not be read"
    )


def report_failures(verb: str, failures: Failures, max_failed: float) -> None:
    """Print how many images failed in the last line, and exit with 3 if they are too many; the rows say why."""
    if not failures.failed:
        return
    sys.stdout.flush()  # main reports a full disk
    text = failures.describe(max_failed)
    if failures.too_many(max_failed):
        messages.error(f"vitkit {verb}", text, exit_code=TOO_MANY_FAILED)
        sys.exit(TOO_MANY_FAILED)
    messages.say("failed", text, file=sys.stderr)
