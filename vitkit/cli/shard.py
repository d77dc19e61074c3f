"""The verb `shard`: write a dataset as tar files."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.cli.options import Json, Label, at_least, option, print_json
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
    workers: Annotated[int, arg(help="images resized at a time")] = 4,
    json: Json = False,
) -> None:
    """Write images into tar files of one size, with an index for random access and webdataset's naming.

    vitkit shard photos/ shards/        then, anywhere: vitkit check shards/

    vitkit shard photos/ small/ --side 512        for photos of many megapixels, which are slow to decode in every epoch
    """
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources.open import open_data
    from vitkit.progress import show_progress
    from vitkit.text import counted

    at_least(1, megabytes=megabytes, side=side, workers=workers)
    opened = open_data(data, label=label)
    with stop_cleanly_on_sigterm():
        resized = write_shards(opened, folder, megabytes=megabytes, side=side, workers=workers, progress=show_progress)
    written = sorted(path.name for path in folder.glob("*.tar"))
    images = {name: len(split) for name, split in opened.splits.items()}
    if json:
        result = {"data": data, "folder": str(folder), "images": images, "smaller": resized, "shards": written}
        print_json("shard", result)
    else:
        print(f"read     {data}: {opened.kind}, " + ", ".join(f"{count:,} {name}" for name, count in images.items()))
        note = f", {resized:,} images resized" if side is not None else ""
        print(f"written  {folder}: {counted(len(written), 'shard')}{note}")
