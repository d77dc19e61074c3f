"""The verb `check`: find problems of a dataset before training."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.cli.options import Data, Json, Label, Task, at_least, failures_as_json, image_size, option, print_json
from vitkit.errors import ConfigError
from vitkit.messages import print_line


def check(
    data: Data,
    image: Annotated[
        tuple[int, ...], arg(help="image side, or height and width, for the contact sheet", metavar="PX")
    ] = (224,),
    resize: Annotated[
        Literal["crop", "squash", "letterbox"], arg(help="how images are resized to the model's size")
    ] = "crop",
    channels: Annotated[int, arg(help="3 is RGB, 1 grey, other numbers the bands of .npy or TIFF files")] = 3,
    sheet: Annotated[
        Path | None,
        option("where to write a contact sheet of the model's input; default: check.png, outside of the data", "FILE"),
    ] = None,
    label: Label = None,
    task: Task = "auto",
    workers: Annotated[int, arg(help="images decoded at a time")] = 4,
    json: Json = False,
) -> None:
    """Check all the data before training: unreadable files, duplicates, leaks between splits, classes, sizes.

    Masks are found by their names; those of segmentation data are read and drawn over the images, too.
    Exit code 0: no problems found; 1: problems found; 2: the source cannot be read. Data without labels are checked for
    pre-training.
    """
    from vitkit.data.check import check as check_data
    from vitkit.data.check_report import print_report, report_as_json
    from vitkit.data.contact_sheet import check_sheet_path, contact_sheet, names_without_font, save_sheet
    from vitkit.data.sources.image_paths import outside_data
    from vitkit.data.sources.open import open_data
    from vitkit.progress import show_progress

    at_least(1, channels=channels, workers=workers)
    size = image_size(image)
    opened = open_data(data, label=label, task=task)
    target = outside_data(Path(data), Path("check.png")) if sheet is None else sheet
    if sheet is not None:
        check_sheet_path(sheet)
    report = check_data(opened, channels=channels, workers=workers, progress=show_progress)
    try:
        save_sheet(contact_sheet(opened, size, resize, channels), target)
        drawn = str(target)
    except ConfigError as error:
        drawn = str(error).splitlines()[0]
    except (OSError, ValueError) as error:  # the report does not depend on the sheet
        drawn = f"could not be written to {target}: {error}"
    if json:
        print_json("check", {**report_as_json(report), **failures_as_json(dict(report.bad)), "sheet": drawn})
    else:
        print_report(report)
        print_line(f"sheet      {drawn}")
        if note := names_without_font(opened):
            print_line(f"           {note}")
    if report.problems:
        sys.exit(1)
