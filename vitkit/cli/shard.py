"""The verb `shard`: write a dataset as tar files."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.cli.options import Json, Label, at_least, option, print_json
from vitkit.messages import print_line
from vitkit.storage.urls import redacted
from vitkit.train.signals import stop_cleanly_on_sigterm


def shard(
    data: Annotated[Positional[str], arg(metavar="DATA", help="a folder, .zip, manifest, arrays, hf:NAME or fashion")],
    folder: Annotated[Positional[Path], arg(metavar="DIR", help="the folder to write")],
    megabytes: Annotated[int, arg(help="size of a shard")] = 256,
    side: Annotated[
        int | None,
        option("resize images whose shorter side is longer, to this; default: leave them as they are", "PX"),
    ] = None,
    label: Label = None,
    workers: Annotated[int, arg(help="processes that write tar files, or images resized at a time")] = 4,
    shard: Annotated[
        str | None,
        option(
            "write share I of N of the tar files, I from 0, on this machine; whoever completes the last one writes the "
            "index; default: as torchrun, Slurm or Kubernetes has set it, else all; no: all",
            "I/N",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write images into tar files of one size, with an index for random access and webdataset's naming.

    vitkit shard photos/ shards/        then, anywhere: vitkit check shards/

    vitkit shard photos/ small/ --side 512        for photos of many megapixels, which are slow to decode in every epoch

    vitkit shard photos/ shards/ --shard 3/8        on the fourth of eight machines that share the folders

    What was interrupted is continued by the same command.
    """
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources.open import open_data
    from vitkit.job_shard import job_shard
    from vitkit.progress import show_progress
    from vitkit.text import counted, few

    at_least(1, megabytes=megabytes, side=side, workers=workers)
    job = job_shard(shard)
    opened = open_data(data, label=label, task="auto")  # masks, which shards do not hold, are refused
    with stop_cleanly_on_sigterm():
        written = write_shards(
            opened, folder, megabytes=megabytes, side=side, workers=workers, job=job, progress=show_progress
        )
    images = {name: len(split) for name, split in opened.splits.items()}
    if json:
        result = {
            "data": redacted(data),
            "folder": str(folder),
            "images": images,
            "smaller": written.downscaled,
            "shards": list(written.shards),
            "missing": list(written.missing),
        }
        print_json("shard", result)
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in images.items())
    print_line(f"read     {redacted(data)}: {opened.kind}, {counts}")
    if job is not None:
        print_line(f"share    {job} of the tar files ({job.source})")
    if written.before:
        print_line(f"before   {written.before:,} of {counted(len(written.shards), 'shard')} were complete")
    if written.missing:
        complete = len(written.shards) - len(written.missing)
        print_line(f"written  {folder}: {complete:,} of {counted(len(written.shards), 'shard')}")
        print_line(f"missing  {few(list(written.missing))}; the command without --shard writes what stays missing")
        return
    note = f", {written.downscaled:,} images resized" if side is not None and written.downscaled is not None else ""
    print_line(f"written  {folder}: {counted(len(written.shards), 'shard')}{note}")
