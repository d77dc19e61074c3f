"""`predict` for a segmentation model: masks into files, or their classes on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import arg

from vitkit import messages
from vitkit.cli.image_jobs import print_written, report_failures, resumable
from vitkit.errors import ConfigError
from vitkit.storage.urls import redacted

if TYPE_CHECKING:
    from vitkit.data.sources.dataset import Split
    from vitkit.predict.failures import Failures
    from vitkit.predict.segmentation import ImageSegmenter, SegmentedImage

Form = Annotated[
    Literal["rle", "polygons"] | None,
    arg(
        name="as",
        help="how --out FILE.json has the masks of a segmentation model; default: rle",
        metavar="rle|polygons",
        help_behavior_hint="",
    ),
]
Overlay = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    arg(help="also write each image with its mask over it, to overlays/ in the folder of --out"),
]

log = logging.getLogger("vitkit")


def refuse_options(**options: object) -> None:
    """Raise an error for options that mean nothing to masks."""
    named = [name for name, value in options.items() if value not in (None, False)]
    if named:
        name = named[0].replace("_", "-")
        raise ConfigError(
            f"--{name} is for models that classify images; this one gives masks.",
            try_=f"the same command without --{name}; --out FOLDER or --out masks.json writes masks",
        )


def predict_masks(
    segmenter: ImageSegmenter,
    split: Split,
    sources: Sequence[str],
    *,
    run: str,
    top: int,
    out: str | None,
    form: Literal["rle", "polygons"] | None,
    overlay: bool,
    overwrite: bool,
    workers: int | None,
    max_failed: float,
    json: bool,
) -> None:
    """Segment the images: to `out`, or as lines on standard output."""
    from vitkit.predict.image_stream import workers_for
    from vitkit.predict.mask_output import check_mask_output, segment_into
    from vitkit.progress import show_progress

    if out is None and (form is not None or overlay):
        raise ConfigError("--as and --overlay need --out, for the masks.", try_="--out FOLDER, or --out masks.json")
    if out is not None:
        check_mask_output(out, form, overlay)
        refuse_inside(out, sources)
    if not segmenter.model.metadata.labels:
        log.warning("%s has no class names, so classes are numbers; --labels FILE names them", redacted(run))
    messages.say("input", segmenter.transform.description, file=sys.stderr)
    messages.say("windows", describe_windows(segmenter), file=sys.stderr)
    threads = workers_for(len(split), workers, segmenter.device)
    if out is None:
        report_failures("predict", _print(segmenter, split, threads, top, json=json), max_failed)
        return
    with resumable(out, None, overwrite=overwrite):
        before, failures = segment_into(
            out,
            segmenter,
            split,
            form=form,
            overlay=overlay,
            workers=threads,
            overwrite=overwrite,
            source=run,
            progress=show_progress,
        )
    print_written("predict", out, None, before, failures, json=json, note="")
    report_failures("predict", failures, max_failed)


def describe_windows(segmenter: ImageSegmenter) -> str:
    from vitkit.compute.windows import MANY

    size = segmenter.compute.trained_size
    if size is None:
        return "none: the size of the training images is not known, and every image is squashed whole"
    return (
        f"images of more than {MANY} times {size[0]} x {size[1]} pixels, the training images' size, are cut into "
        "overlapping windows; others are squashed whole"
    )


def refuse_inside(out: str, sources: Sequence[str]) -> None:
    """Raise an error for masks inside a folder of the images: the next call would take them for images."""
    from pathlib import Path

    from vitkit.predict.rows import is_folder
    from vitkit.storage.urls import is_url

    if is_url(out) or not is_folder(out):
        return
    target = Path(out).resolve()
    for source in sources:
        if not is_url(source) and Path(source).is_dir() and target.is_relative_to(Path(source).resolve()):
            raise ConfigError(
                f"--out {out} is inside {source}: the next call would take masks for images.",
                try_="--out another folder",
            )


def _print(segmenter: ImageSegmenter, split: Split, threads: int, top: int, *, json: bool) -> Failures:
    from vitkit.predict.failures import Failures
    from vitkit.predict.mask_output import json_lines
    from vitkit.predict.mask_printing import print_segmented
    from vitkit.predict.mask_stream import stream_masks
    from vitkit.predict.segmentation import BATCH
    from vitkit.progress import no_progress, show_progress
    from vitkit.text import printable_lines

    progress = no_progress if sys.stdout.isatty() else show_progress  # a bar would run through the rows
    failures = Failures(len(split))
    segmented = _counted(failures, stream_masks(segmenter, split, batch=BATCH, threads=threads, progress=progress))
    if json:
        lines = json_lines(segmented)
        sys.stdout.writelines(map(printable_lines, lines) if sys.stdout.isatty() else lines)
    else:
        print_segmented(segmented, split.keys, top)
    return failures


def _counted(failures: Failures, segmented: Iterable[SegmentedImage]) -> Iterator[SegmentedImage]:
    for one in segmented:
        failures.add(one.name, one.error)
        yield one
