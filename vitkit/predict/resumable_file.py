"""A file with a row for each image, whose writing survives an interruption: the next call continues after the last
batch.

What its rows depend on is compared before a call continues: the model, the preprocessing, the engine, the images.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from vitkit.compute.features import weights_hash
from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.variants import name_of
from vitkit.predict.engines import Engine
from vitkit.predict.failures import Failures
from vitkit.predict.image_stream import ImageOutputs, ImageTask, stream_outputs
from vitkit.predict.journal import BlockT, Journal, Trait
from vitkit.predict.output_file import OutputFile
from vitkit.progress import Progress, no_progress
from vitkit.storage.failures import StorageError
from vitkit.storage.urls import redacted
from vitkit.text import printable

CONTINUE = "the same command without --overwrite continues after the last of them"
Blocks = Callable[[], Iterator[tuple[list[str], BlockT]]]  # the names of some images and their rows, from the first on


@dataclass(frozen=True, kw_only=True)
class JournalFormat(Generic[BlockT]):
    """The rows of a file: how a block of the journal is read, and how the complete journal becomes the file."""

    read: Callable[[Mapping[str, Any]], BlockT]  # of the journal; raises a VitkitError for a damaged block
    write: Callable[[Path, Blocks[BlockT], int], None]  # of so many images
    sidecars: Callable[[Path], Sequence[Path]] = lambda out: ()  # further files that `write` makes


@dataclass(frozen=True, kw_only=True)
class BlockFormat(JournalFormat[BlockT]):
    """The rows of a file that are made of the outputs of batches, also in parts."""

    block: Callable[[ImageOutputs], BlockT]
    # (names, rows) → the Parquet file of a part, and back; the latter raises a VitkitError for a damaged one
    part: Callable[[Sequence[str], Sequence[BlockT]], bytes]
    read_part: Callable[[bytes], tuple[list[str], BlockT]]


@dataclass(frozen=True, kw_only=True)
class RowsJob(Generic[BlockT]):
    """A computation on images, the form of its rows, and what they depend on besides the images."""

    task: ImageTask
    format: BlockFormat[BlockT]
    traits: Mapping[str, Trait]


def write_resumable(
    output: OutputFile,
    job: RowsJob[BlockT],
    split: Split,
    *,
    workers: int = 0,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write a row for each image; return how many were complete already, and the images that failed.

    Of an output behind a URL, the journal and the file are in a folder of this machine until the file is uploaded.
    """

    def compute(start: int, batch: int) -> Iterator[BlockT]:
        task = replace(job.task, batch=batch)
        for outputs in stream_outputs(task, split, start=start, workers=workers, progress=progress):
            yield job.format.block(outputs)

    return write_journalled(
        output, job.format, job.traits, split.keys, compute, batch=job.task.batch, overwrite=overwrite
    )


def write_journalled(
    output: OutputFile,
    format: JournalFormat[BlockT],
    traits: Mapping[str, Trait],
    names: Sequence[str],
    compute: Callable[[int, int], Iterator[BlockT]],
    *,
    batch: int,
    overwrite: bool = False,
) -> tuple[int, Failures]:
    """Write the blocks of all images; `compute` yields those from a first image on, computed in batches of a size.

    Return how many images were complete already, and those that failed.
    """
    out, sidecars = output.path, format.sidecars(output.path)
    for path in (out, *sidecars):
        if output.exists(path) and not overwrite and not output.being_replaced(path):
            complete = ", and is complete" if path == out else ""
            raise ConfigError(
                f"{output.name_of(path)} exists already{complete}; nothing was computed.",
                try_="another --out, or --overwrite",
            )
    journal = Journal(out, {**traits, "images": images_trait(names)}, batch=batch, read=format.read, restart=overwrite)
    done = journal.done
    try:
        if done < len(names):  # a part of the last batch would be computed again
            for computed in compute(done, journal.batch):
                journal.write(computed)

        def blocks() -> Iterator[tuple[list[str], BlockT]]:
            first = 0
            for block in journal.blocks():
                yield [*names[first : first + len(block)]], block
                first += len(block)

        failures = Failures(len(names))
        for some, block in blocks():
            failures.add_all(some, block.errors)
        format.write(out, blocks, len(names))
        output.publish(sidecars)
        journal.discard()
    except StorageError as error:
        error.add(kept=f"{journal.path}: the rows so far", then=CONTINUE)
        raise
    finally:
        journal.close()
    return done, failures


def model_trait(model: Model, transform: EvalTransform, source: str, head: str = "") -> Trait:
    """Return the model as a trait; `head` is a hash of the logits' layer, where the rows depend on it."""
    height, width = transform.image
    variant = f"{name_of(model.config) or 'sizes of its own'} at {height} x {width} px"
    described = f"{variant}, from {redacted(source)}" if source else variant
    return Trait(f"{weights_hash(model)} {head}".strip(), described)


def preprocessing_trait(transform: EvalTransform) -> Trait:
    # the name that EvalTransform has in journals
    preprocessing = f"Exact(image={transform.image!r}, preprocessing={transform.preprocessing!r})"
    return Trait(preprocessing, "; ".join(transform.describe()))


def engine_trait(engine: Engine) -> Trait:
    """Return the engine as a trait: a fast one is not exact."""
    name = engine.description.partition(":")[0]
    return Trait(name, name)


def images_trait(names: Iterable[str]) -> Trait:
    """Return the names of all images, in their order, as a trait; they may be more than memory holds."""
    count, first = 0, ""

    def encoded() -> Iterator[bytes]:
        nonlocal count, first
        for name in names:
            count, first = count + 1, first or name
            yield name.encode("utf-8", "surrogateescape") + b"\0"

    value = digest(encoded())
    return Trait(value, f"{count:,}, the first {printable(first)}" if count else "none")


def digest(chunks: Iterable[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()
