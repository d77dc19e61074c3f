"""The verbs of data as such: a look at all of it, and tar files of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.cli.options import Data, Json, Label, at_least, cleared_up, image_size, option, outside, print_json
from vitkit.errors import ConfigError


def check(
    data: Data,
    image: Annotated[
        tuple[int, ...], arg(help="image side, or height and width, for the contact sheet", metavar="PX")
    ] = (224,),
    resize: Annotated[Literal["crop", "squash", "letterbox"], arg(help="how pictures will be fitted")] = "crop",
    channels: Annotated[int, arg(help="3 is RGB, 1 grey, other numbers the bands of .npy or TIFF files")] = 3,
    sheet: Annotated[
        Path | None,
        option(
            "where the contact sheet of what a model will see goes; check.png, outside of the data, unless said", "FILE"
        ),
    ] = None,
    label: Label = None,
    workers: Annotated[int, arg(help="pictures decoded at a time")] = 4,
    json: Json = False,
) -> None:
    """A look at all the data before training: bad files, copies, leaks between splits, classes, sizes.

    Exit code 0 when nothing would hurt training (pre-training, without labels), 1 when something would, 2 when the
    source cannot be read.
    """
    from vitkit.data.check import check as check_data
    from vitkit.data.report import contact_sheet, print_report, report_as_json
    from vitkit.data.sheet import refuse_others, save_sheet
    from vitkit.data.sources.open import open_data
    from vitkit.progress import show_progress

    at_least(1, channels=channels, workers=workers)
    size = image_size(image)
    opened = open_data(data, label=label)
    target = outside(Path(data), Path("check.png")) if sheet is None else sheet
    if sheet is not None:
        refuse_others(sheet)
    report = check_data(opened, channels=channels, workers=workers, progress=show_progress)
    try:
        save_sheet(contact_sheet(opened, report, size, resize, channels), target)
        drawn = str(target)
    except ConfigError as error:
        drawn = str(error).splitlines()[0]
    except (OSError, ValueError) as error:  # the report does not depend on it
        drawn = f"could not be written to {target}: {error}"
    if json:
        print_json({**report_as_json(report), "sheet": drawn})
    else:
        print_report(report)
        print(f"sheet      {drawn}")
    if report.problems:
        sys.exit(1)


def shard(
    data: Annotated[Positional[str], arg(metavar="DATA", help="a folder, .zip, manifest, arrays, hf:NAME or fashion")],
    folder: Annotated[Positional[Path], arg(metavar="DIR", help="the folder to write")],
    megabytes: Annotated[int, arg(help="size of a shard")] = 256,
    side: Annotated[
        int | None,
        option("pictures whose shorter side is longer are made smaller, to this; as they are unless said", "PX"),
    ] = None,
    label: Label = None,
    workers: Annotated[int, arg(help="pictures made smaller at a time")] = 4,
    json: Json = False,
) -> None:
    """Pictures into tar files of one size, with an index for random access; webdataset's naming.

    vitkit shard photos/ shards/        then, anywhere: vitkit check shards/

    vitkit shard photos/ small/ --side 512        photos of many megapixels, which are slow to read in every epoch
    """
    from vitkit.data.shards import write_shards
    from vitkit.data.sources.open import open_data
    from vitkit.progress import show_progress
    from vitkit.text import counted

    at_least(1, megabytes=megabytes, side=side, workers=workers)
    opened = open_data(data, label=label)
    with cleared_up():
        smaller = write_shards(opened, folder, megabytes=megabytes, side=side, workers=workers, progress=show_progress)
    written = sorted(path.name for path in folder.glob("*.tar"))
    pictures = {name: len(split) for name, split in opened.splits.items()}
    if json:
        print_json({"data": data, "folder": str(folder), "pictures": pictures, "smaller": smaller, "shards": written})
    else:
        print(f"read     {data}: {opened.kind}, " + ", ".join(f"{count:,} {name}" for name, count in pictures.items()))
        made = f", {smaller:,} pictures made smaller" if side is not None else ""
        print(f"written  {folder}: {counted(len(written), 'shard')}{made}")
