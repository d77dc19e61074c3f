"""Masks of many images into a folder of PNG files, or into one JSON file of COCO's; a stop loses no mask.

A folder has a mask for each image, in the same folders, and masks.jsonl: a row for each image, written at the end. Both
kinds of output keep a journal, as rows of classes do, so that the same command continues after the last image.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.atomic import replacing
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.image_paths import unlabelled_split
from vitkit.errors import ConfigError
from vitkit.predict.coco_masks import MaskForm, annotations_of, write_coco
from vitkit.predict.failures import Failures
from vitkit.predict.journal import Trait, journal_path
from vitkit.predict.mask_files import write_mask, write_overlay
from vitkit.predict.mask_names import mask_names
from vitkit.predict.mask_rows import MaskRow
from vitkit.predict.mask_stream import read_pixels, stream_masks
from vitkit.predict.output_file import OutputFile
from vitkit.predict.resumable_file import (
    Blocks,
    JournalFormat,
    digest,
    model_trait,
    preprocessing_trait,
    write_journalled,
)
from vitkit.predict.rows import check_output_file, is_folder
from vitkit.predict.segmentation import BATCH, ImageSegmenter, SegmentedImage
from vitkit.predict.stream import Images
from vitkit.progress import Progress, no_progress
from vitkit.storage.urls import is_url, redacted
from vitkit.text import counted, few

ROWS = "masks.jsonl"  # in an output folder
OVERLAYS = "overlays"


def check_mask_output(out: str | os.PathLike[str], form: MaskForm | None, overlay: bool) -> None:
    """Raise a ConfigError for an output that masks cannot be written to, or options that do not go together."""
    if is_folder(out):
        if is_url(out):
            raise ConfigError(
                f"--out {redacted(os.fspath(out))}: masks are written to a folder of this machine.",
                try_="--out FOLDER, then copy it; or --out URL/masks.json",
            )
        if form is not None:
            raise ConfigError(f"--as {form} is for --out FILE.json; a folder gets PNG files", try_="--out masks.json")
        return
    check_output_file(out, (".json",))
    if overlay:
        raise ConfigError("--overlay needs a folder for its files", try_="--out FOLDER")


def segment_into(
    out: str | os.PathLike[str],
    segmenter: ImageSegmenter,
    images: Images,
    *,
    form: MaskForm | None = None,
    overlay: bool = False,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write the masks of images to a folder as PNG, or to a .json file as COCO's RLE or polygons.

    Return how many were complete already, and the images that could not be read. After an interruption, the same call
    continues after the last mask. `source` is where the model came from, for messages.
    """
    check_mask_output(out, form, overlay)
    split = unlabelled_split(images)
    folder = Path(out) if is_folder(out) else None
    job = _MaskJob(segmenter, split, workers, progress, source)
    if folder is None:
        return _into_json(OutputFile.of(out), job, form or "rle", overwrite=overwrite)
    return _into_folder(folder, job, overlay=overlay, overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class _MaskJob:
    """The images of a job and the model that segments them."""

    segmenter: ImageSegmenter
    split: Split
    workers: int
    progress: Progress
    source: str

    def masks(self, start: int, batch: int) -> Iterator[tuple[int, SegmentedImage]]:
        """Yield the segmented images from a first one on, with their indices."""
        masks = stream_masks(
            self.segmenter, self.split, start=start, batch=batch, threads=self.workers, progress=self.progress
        )
        return enumerate(masks, start)

    def traits(self, form: str) -> dict[str, Trait]:
        """Return what masks depend on besides the images."""
        model, size = self.segmenter.model, self.segmenter.compute.trained_size
        head = digest(tensor.float().cpu().numpy().tobytes() for tensor in model.head.state_dict().values())
        named = [*map(repr, zip(self.segmenter.classes, self.segmenter.palette, strict=True))]
        return {
            "model": model_trait(model, self.segmenter.transform, self.source, head),
            "class names": Trait(digest(text.encode() for text in named), few(self.segmenter.classes, 3)),
            "preprocessing": preprocessing_trait(self.segmenter.transform),
            "windows": Trait(f"{size}", "none" if size is None else f"{size[0]} x {size[1]}"),
            "form": Trait(form, form),
        }


def _into_json(output: OutputFile, job: _MaskJob, form: MaskForm, *, overwrite: bool) -> tuple[int, Failures]:
    from vitkit import __version__

    segmenter = job.segmenter
    classes = len(segmenter.classes)

    def compute(start: int, batch: int) -> Iterator[MaskRow]:
        for _, segmented in job.masks(start, batch):
            done = segmented.error is None
            yield MaskRow.of(segmented, annotations=annotations_of(segmented.mask, classes, form) if done else ())

    def write(path: Path, blocks: Blocks[MaskRow], images: int) -> None:
        info = {"description": "predicted masks", "vitkit": __version__, "model": redacted(job.source)}
        write_coco(path, lambda: _rows(blocks), segmenter.classes, segmenter.palette, info)

    format = JournalFormat(read=MaskRow.read, write=write)
    return write_journalled(output, format, job.traits(form), job.split.keys, compute, batch=BATCH, overwrite=overwrite)


def _into_folder(folder: Path, job: _MaskJob, *, overlay: bool, overwrite: bool) -> tuple[int, Failures]:
    names, output = mask_names(job.split.keys), OutputFile.of(folder / ROWS)
    _refuse_other_files(folder, names, job.split, overwrite=overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}.", try_="--out another folder") from error

    def compute(start: int, batch: int) -> Iterator[MaskRow]:
        for index, segmented in job.masks(start, batch):
            if segmented.error is None:
                write_mask(folder / names[index], segmented.mask, segmented.palette)
                if overlay:
                    _write_overlay(folder / OVERLAYS / names[index], job, index, segmented)
            yield MaskRow.of(segmented, mask=names[index])

    format = JournalFormat(read=MaskRow.read, write=lambda path, blocks, images: _write_rows(path, _rows(blocks)))
    traits = job.traits("PNG with overlays" if overlay else "PNG")
    return write_journalled(output, format, traits, job.split.keys, compute, batch=BATCH, overwrite=overwrite)


def _write_overlay(path: Path, job: _MaskJob, index: int, segmented: SegmentedImage) -> None:
    pixels = read_pixels(job.segmenter, job.split, index)
    write_overlay(path.with_suffix(".jpg"), pixels, segmented.mask, segmented.palette)


def _refuse_other_files(folder: Path, names: list[str], split: Split, *, overwrite: bool) -> None:
    """Raise an error where a mask would take the place of an image, or of a file that this job has not written."""
    images = {os.path.abspath(name) for name in split.keys if not is_url(name)}
    if taken := [name for name in names if os.path.abspath(folder / name) in images]:
        raise ConfigError(
            f"{folder / taken[0]} is one of the images; its mask would replace it.", try_="--out another folder"
        )
    begun = journal_path(folder / ROWS).exists() or (folder / ROWS).exists()
    if overwrite or begun or not folder.exists():
        return
    if there := [name for name in names if os.path.exists(folder / name)]:
        raise ConfigError(
            f"{folder} has {counted(len(there), 'file')} in the place of a mask already; nothing was computed.",
            such_as=few(there, 3),
            try_="--out another folder, or --overwrite",
        )


def _write_rows(path: Path, rows: Iterator[MaskRow]) -> None:
    with replacing(path, ConfigError) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row.as_json()) + "\n" for row in rows)


def _rows(blocks: Blocks[MaskRow]) -> Iterator[MaskRow]:
    return (row for _, row in blocks())


def json_lines(segmented: Iterator[SegmentedImage]) -> Iterator[str]:
    """Yield a line of JSON for each image."""
    rows: Iterator[dict[str, Any]] = (MaskRow.of(one).as_json() for one in segmented)
    return (json.dumps(row) + "\n" for row in rows)
