"""The data of a run, as its folder records them when it begins and compares them when it goes on."""

from __future__ import annotations

from typing import Any

from vitkit.config.schema import Fit
from vitkit.data.contents import UNSEEN, ContentsRecord, Reading, changed_images, contents_record, pick_compared
from vitkit.data.fingerprint import FingerprintCache
from vitkit.data.groups import KeptTogether, compared_splits, keep_together, should_find_copies
from vitkit.data.partition import fingerprint, is_fingerprint
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.splits import training_split
from vitkit.devices import cores, processes_sharing_cores
from vitkit.progress import PrintLine, no_progress, show_progress
from vitkit.run_folder import RECORD, RunError, RunFolder
from vitkit.text import counted, few
from vitkit.train.distributed import Processes


def keep_copies_together(config: Fit, data: Data, processes: Processes) -> KeptTogether:
    """Find the copies among the images, on all ranks together, so that every split has them on one side."""
    if not config.labelled:  # nothing is held out or scored
        return KeptTogether(data, ())
    progress = show_progress if processes.is_rank_zero else no_progress
    return keep_together(data, duplicates=config.duplicates, progress=progress, **vars(_reading(processes)))


def contents_of_run(config: Fit, data: Data, processes: Processes) -> ContentsRecord:
    """Return the contents of the images that the run uses: in full where copies were looked for, else in samples."""
    labels = config.labelled
    splits = compared_splits(data) if labels else [training_split(data)]
    hashed = labels and should_find_copies(data, config.duplicates) and FingerprintCache().table is not None
    compared = pick_compared(sum(len(data.splits[name]) for name in splits), hashed=hashed)
    return contents_record(data, splits, compared, _reading(processes))


def _reading(processes: Processes) -> Reading:
    """Return this rank's share of the reading, with the cores of its machine divided among the ranks on it."""
    return Reading(cores() // processes_sharing_cores(), processes.rank, processes.world_size, processes.gather)


def check_data_unchanged(data: Data, folder: RunFolder, processes: Processes, print_line: PrintLine) -> None:
    """Raise if images, classes or contents of images are not those that the run was started with."""
    record = folder.record().get("data", {})
    expected = record.get("fingerprint")
    if expected is not None and not is_fingerprint(expected, data, training_split(data)):
        raise RunError(
            f"{data.name} is not what {folder.path} was started with: images or classes have changed.",
            try_="restore the data, or start a new run",
        )
    contents: ContentsRecord | None = record.get("contents")
    if contents is None:  # of an earlier version
        return
    if changed := changed_images(data, contents, _reading(processes)):
        number = counted(len(changed), "image")
        if data.task == "segment":  # an image's mask is part of its content
            number += " or its mask" if len(changed) == 1 else " or their masks"
        raise RunError(
            f"{data.name} is not what {folder.path} was started with: the content of {number} has changed, under the "
            "same name.",
            such_as=few(changed),
            try_=f"restore these images{' or masks' if data.task == 'segment' else ''}, or start a new run",
            or_=f'remove "contents" from "data" in {folder.path / RECORD} to go on with the images as they are; the '
            "result is then that of neither",
        )
    images = sum(len(data.splits[name]) for name in contents["splits"] if name in data.splits)
    print_line("unchanged", f"{counted(images, 'image')}: {UNSEEN[contents['compared']]}")


def describe_data(data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "kind": data.kind,
        "classes": len(data.classes),
        "notes": list(data.notes),
        "pictures": {name: len(split) for name, split in data.splits.items()},
        "fingerprint": fingerprint(data, training_split(data)),
        "counts": {
            name: dict(zip(data.classes, split.per_class(len(data.classes)).tolist(), strict=True))
            for name, split in data.splits.items()
            if data.classes and data.task == "classify"  # which classes a mask has is known when it is decoded
        },
    }
