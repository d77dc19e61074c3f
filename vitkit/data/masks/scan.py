"""Scan mask files for the numbers and colours in them: the classes of masks that nobody has named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from vitkit.data.masks.class_table import ClassTable, NamedClass, build_table, is_binary
from vitkit.data.masks.ignore import IGNORE, MAX_CLASSES
from vitkit.data.masks.mask_file import StoredMask, decode_mask, unpacked_colour
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.file_tree import FileStore
from vitkit.errors import VitkitError
from vitkit.text import counted, few

THREADS = 8  # decoding releases the GIL
_AT_A_TIME = 64  # masks, after which their colours are counted


@dataclass
class MaskScan:
    """The numbers and colours of masks; a mask that cannot be read has none, and reading it later says why."""

    numbers: Counter[int] = field(default_factory=Counter)  # number → masks that have it
    colours: Counter[int] = field(default_factory=Counter)  # 0xRRGGBB → masks that have it
    palettes: dict[int, set[int]] = field(default_factory=dict)  # number → its colours in the palettes of files
    lossy: int = 0  # JPEG files, whose values are left out

    @property
    def is_grey(self) -> bool:
        """Return whether all colours are grey: numbers that were saved as RGB."""
        return all(len(set(unpacked_colour(colour))) == 1 for colour in self.colours)

    @property
    def palettes_differ(self) -> bool:
        """Return whether a number has one colour in one file and another in the next: colours are the classes then."""
        return any(len(colours) > 1 for colours in self.palettes.values())


def scan_masks(files: FileStore, rows: Sequence[int]) -> MaskScan:
    """Scan these masks of a store, in threads; it ends early where there are more colours than classes can be."""
    scan = MaskScan()
    with ThreadPoolExecutor(THREADS) as pool:
        for first in range(0, len(rows), _AT_A_TIME):
            for values in pool.map(partial(_values_of, files), rows[first : first + _AT_A_TIME]):
                if values is not None:
                    _add(scan, *values)
            if len(scan.colours) > MAX_CLASSES or len(scan.numbers) > MAX_CLASSES + 1:
                break
    return scan


def _values_of(files: FileStore, row: int) -> tuple[StoredMask, list[int]] | None:
    try:
        mask = decode_mask(files.read(row))
    except (OSError, VitkitError):
        return None
    if mask.lossy:
        return mask, []
    if mask.is_colour:  # of each run of equal pixels one: sorting all of them would take longer than decoding
        flat = mask.values.ravel()
        return mask, np.unique(flat[np.append(True, flat[1:] != flat[:-1])]).tolist()
    return mask, np.flatnonzero(np.bincount(mask.values.ravel())).tolist()


def _add(scan: MaskScan, mask: StoredMask, values: list[int]) -> None:
    (scan.colours if mask.is_colour else scan.numbers).update(values)
    scan.lossy += mask.lossy
    if mask.palette is not None:
        for number in values:
            scan.palettes.setdefault(number, set()).add(int(mask.palette[number]))


def table_of_scan(scan: MaskScan, shown: str) -> tuple[ClassTable, list[str]]:
    """Return the classes that a scan has found, with notes on what was decided; `shown` names the masks in messages."""
    if scan.palettes_differ:
        scan.colours.update({colour: 1 for colours in scan.palettes.values() for colour in colours})
    numbers = set(scan.numbers)
    if scan.is_grey:
        numbers.update(colour & 255 for colour in scan.colours)
    elif scan.palettes_differ or not numbers:
        return _table_of_colours(scan, shown)
    else:
        raise DataError(
            f"some masks in {shown} have class numbers and others colours, and no file says what they mean.",
            found=f"numbers {few(_texts(numbers))}; colours {few(_hex_codes(scan.colours))}",
            try_="class_dict.csv beside the masks, with a line name,r,g,b for each class, in the order of the numbers",
        )
    _check_count(len(numbers - {IGNORE}), "numbers", shown)
    if not numbers and scan.lossy:
        raise DataError(
            f"the masks in {shown} are JPEG files, and JPEG changes values near edges.",
            try_="masks as PNG; those of two classes are restored by a threshold",
        )
    if not numbers:
        raise DataError(f"no mask in {shown} can be read.", try_="masks as 8-bit PNG")
    if is_binary(numbers):
        high = max(numbers)
        table = build_table([NamedClass("background", 0), NamedClass("foreground", high)], shown)
        return table, [f"masks of 0 and {high} alone: background and foreground, nothing is ignored"]
    classes = [NamedClass(f"class {number}", number, _colour(scan, number)) for number in sorted(numbers - {IGNORE})]
    if not classes:
        raise DataError(
            f"all pixels of the masks in {shown} are {IGNORE}, which means ignored.",
            try_=f'if {IGNORE} is a class, classes.json beside the masks: {{"{IGNORE}": "NAME"}}',
        )
    notes = [
        f"no file names the classes: they are the numbers found in the masks, {_spans(sorted(numbers - {IGNORE}))}; "
        "classes.txt beside the masks, with a name per line from number 0 on, gives them names"
    ]
    if IGNORE in numbers:
        notes.append(f"pixels of {IGNORE} are ignored ({counted(scan.numbers[IGNORE], 'mask has', 'masks have')} some)")
    by_numbers = [NamedClass(one.name, one.number) for one in classes]
    table = build_table(by_numbers, f"the numbers found in {shown}")
    colours = [one.colour or default for one, default in zip(classes, table.palette, strict=True)]
    return ClassTable(**{**vars(table), "palette": tuple(colours)}), notes


def _table_of_colours(scan: MaskScan, shown: str) -> tuple[ClassTable, list[str]]:
    _check_count(len(scan.colours), "colours", shown)
    classes = [NamedClass(code, colour=unpacked_colour(int(code[1:], 16))) for code in _hex_codes(sorted(scan.colours))]
    notes = [
        f"no file says what the colours of the masks mean: {counted(len(classes), 'class')} by hex code, "
        f"{few([one.name for one in classes])}; class_dict.csv beside the masks, with lines name,r,g,b, gives them "
        "names, and ignores those called void"
    ]
    if scan.palettes_differ:
        notes.append("the palettes of the masks differ from file to file, so that colours are classes, not numbers")
    return build_table(classes, f"the colours found in {shown}"), notes


def _check_count(count: int, values: str, shown: str) -> None:
    if count > MAX_CLASSES:
        raise DataError(
            f"the masks in {shown} have more than {MAX_CLASSES} {values}, more than classes can be: edges are probably "
            "smoothed (anti-aliased), or the masks went through a JPEG.",
            try_="save masks as PNG, without smoothing, and resize them by nearest neighbour",
        )


def _colour(scan: MaskScan, number: int) -> tuple[int, int, int] | None:
    """Return the colour of a number in the files' palette; none for a grey ramp, as of masks that were made grey."""
    colours = scan.palettes.get(number)
    is_ramp = all(own == {value * 0x010101} for value, own in scan.palettes.items())
    return None if not colours or is_ramp else unpacked_colour(min(colours))


def _texts(numbers: Iterable[int]) -> list[str]:
    return [str(number) for number in sorted(numbers)]


def _hex_codes(colours: Iterable[int]) -> list[str]:
    return [f"#{colour:06x}" for colour in colours]


def _spans(numbers: Sequence[int]) -> str:
    """Return [0, 1, 2, 5] as "0 to 2, 5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return few([f"{low} to {high}" if low < high else f"{low}" for low, high in spans], 8)
