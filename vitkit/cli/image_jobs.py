"""Jobs over image files, as `predict` and `embed` run them: their options, their last lines and their exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit import messages
from vitkit.cli.options import option, print_json
from vitkit.errors import TOO_MANY_FAILED, ConfigError, Interrupted
from vitkit.job_shard import NO, JobShard, job_shard
from vitkit.storage.urls import is_url, redacted
from vitkit.text import counted
from vitkit.train.signals import exit_code, stop_cleanly_on_sigterm

if TYPE_CHECKING:
    import torch

    from vitkit.data.sources.dataset import Split
    from vitkit.predict.failures import Failures

# choosing a fast engine takes as long as predicting about so many images exactly: measured for Ti/16 on two busy cores,
# estimated for a GPU; a fixed number, so that a job which is continued decides as it did before
MIN_IMAGES_FOR_FAST = {"cpu": 1_000, "cuda": 10_000}

SECONDS_TO_SAY = 1.0  # from which on the time for listing images is printed

Images = Annotated[
    Positional[tuple[str, ...]],
    option("images, folders or URLs of them, patterns in quotes, or - for a list of them on standard input", "IMAGES…"),
]
Shard = Annotated[
    str | None,
    option(
        "compute shard I of N, counted from 0, into part files that all N processes share; the same command without it "
        "puts them together; default: from RANK, SLURM_PROCID, SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX",
        "I/N|no",
    ),
]
Engine = Annotated[
    Literal["local", "ray"],
    arg(
        help="where to compute: this process, or the Ray cluster of RAY_ADDRESS, without one a cluster of this machine"
    ),
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


def list_images(sources: Sequence[str]) -> Split:
    """Return the images without their masks, and say how many there are where finding them took its time."""
    from vitkit.data.sources.image_paths import open_images
    from vitkit.predict.leave_out_masks import leave_out_masks
    from vitkit.progress import show_count

    started = time.monotonic()
    images, masks = leave_out_masks(open_images(sources, show_count("listing", "files")), sources)
    seconds = time.monotonic() - started
    if seconds >= SECONDS_TO_SAY:
        messages.say("listing", f"{counted(len(images), 'image')} found in {seconds:.1f} s", file=sys.stderr)
    if masks:
        text = f"left out {counted(len(masks), 'mask')} of the images, such as {redacted(masks[0])}"
        messages.say("note", text, file=sys.stderr)
    return images


def check_engine(engine: str, **local_only: object) -> None:
    """Raise an error for options that mean nothing to a cluster."""
    named = [name for name, value in local_only.items() if value not in (None, False, "auto")]
    if engine == "ray" and named:
        raise ConfigError(f"--engine ray decides about --{named[0]} itself.", try_=f"--engine ray without --{named[0]}")


def chosen_shard(option: str | None, out: str | None) -> JobShard | None:
    """Return the shard of this process, and say which it is and where that is from; None is all of the images."""
    if out is None and option is None and "RANK" not in os.environ:
        return None  # a script in a Slurm array may print what it likes
    shard = job_shard(option)
    if shard is not None and out is None:
        raise ConfigError(
            f"shard {shard}, from {shard.source}, needs --out, for the rows of all shards.",
            try_=f"--out FOLDER, --out answers.csv, or --shard {NO} for all images",
        )
    if shard is not None:
        text = f"{shard}, from {shard.source}" + ("" if option else f"; --shard {NO} takes all images")
        messages.say("shard", text, file=sys.stderr)
    return shard


@contextmanager
def resumable(out: str, shard: JobShard | None, *, overwrite: bool) -> Iterator[None]:
    """Stop on Ctrl-C and SIGTERM with a message that says how to continue."""
    from vitkit.predict.output_file import OutputFile
    from vitkit.predict.rows import is_folder

    journal = f"{out}.part"
    if is_url(out) and shard is None and not is_folder(out):
        journal = str(OutputFile.of(out).journal)
        text = f"{journal} holds the rows until they are uploaded to {redacted(out)} as one file"
        messages.say("journal", text, file=sys.stderr)
    try:
        with stop_cleanly_on_sigterm():
            yield
    except KeyboardInterrupt as stopped:
        continued = journal if os.path.exists(journal) else f"the parts of {redacted(out)}"
        command = "the same command, without --overwrite," if overwrite else "the same command"
        raise Interrupted(
            f"stopped; {command} continues after the last row of {continued}", exit_code(stopped)
        ) from None


def print_written(
    verb: str, out: str, shard: JobShard | None, before: int, failures: Failures, *, json: bool, note: str
) -> None:
    """Print what was written: the file, its images, those from an earlier call, and those that failed."""
    images = failures.images
    if json:
        result = {"out": redacted(out), "images": images, "there_already": before, "unreadable": failures.failed}
        if shard is not None:
            result["shard"] = str(shard)
        print_json(verb, {**result, "failed": failures.failed, "failures": failures.first})
        return
    part = "" if shard is None else f", shard {shard}"
    kept = f", {before:,} of them from an earlier call" if before else ""
    messages.print_line(
        f"written  {redacted(out)}{part}: {counted(images, 'image')}{note}{kept}; {failures.failed:,} could not be read"
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
