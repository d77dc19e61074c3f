"""The classes of masks: which stored number or colour is which class, and which pixels are ignored.

A pixel is ignored where its class has a name that says so (void, unlabelled, …), or where its number is 255 and no
class was given that number. Masks of 0 and 255 alone are something else: background and foreground.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.ignore import IGNORE, MAX_CLASSES
from vitkit.data.masks.mask_file import StoredMask, packed_colours
from vitkit.data.masks.palette import Colour, Palette, default_palette
from vitkit.data.sources.dataset import DataError, nfc
from vitkit.errors import DecodeError
from vitkit.text import counted, few, printable, valid_utf8

UNKNOWN = -1
NUMBERS = 1 << 16  # numbers that a mask of 16 bits can have
BINARY = frozenset({0, 255}), frozenset({0, 65535})
IGNORED_NAMES = frozenset(
    """
    void ignore ignored ignorelabel ignoreindex unlabelled unlabeled notlabelled notlabeled unannotated dontcare
    """.split()
)


@dataclass(frozen=True)
class NamedClass:
    """A class as a file of names has it; without a number, its position in the file is its number."""

    name: str
    number: int | None = None
    colour: Colour | None = None

    @property
    def is_ignored(self) -> bool:
        return re.sub(r"[\W\d_]", "", self.name).casefold() in IGNORED_NAMES


@dataclass(frozen=True, eq=False)
class ClassTable:
    """The classes 0, 1, 2, … of stored numbers and colours."""

    names: tuple[str, ...]
    palette: Palette
    numbers: NDArray[np.int16]  # (NUMBERS,) the class of each number, IGNORE or UNKNOWN
    colours: NDArray[np.uint32]  # (n,) known colours, sorted
    classes_of_colours: NDArray[np.int16]  # (n,) the class of each, or IGNORE
    origin: str  # the file of the names, for messages
    ignored: tuple[str, ...] = ()  # for people: "void (11)"

    def classes_of(self, mask: StoredMask) -> NDArray[np.uint8]:
        """Return the class of each pixel, or raise a DecodeError that names a number or colour without a class."""
        if mask.is_colour or self._is_by_palette(mask):
            return self._checked(mask.colours(), self._classes_of_colours(mask), mask)
        return self._checked(mask.values, self.numbers[mask.values], mask)

    def _is_by_palette(self, mask: StoredMask) -> bool:
        """Return whether the colours of a file's palette name its classes, as opposed to its numbers."""
        if mask.palette is None or not len(self.colours):
            return False
        used = np.flatnonzero(np.bincount(mask.values.ravel(), minlength=256))
        return bool(np.isin(mask.palette[used], self.colours).all())

    def _classes_of_colours(self, mask: StoredMask) -> NDArray[np.int16]:
        colours = mask.colours()
        if not len(self.colours):
            grey = (colours >> 16 == colours & 255) & (colours >> 8 & 255 == colours & 255)
            return np.where(grey, self.numbers[colours & 255], np.int16(UNKNOWN))
        # one search for each run of equal pixels: masks have a hundredth as many runs as pixels
        flat = colours.ravel()
        starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))
        runs = flat[starts]
        nearest = np.minimum(np.searchsorted(self.colours, runs), len(self.colours) - 1)
        classes = np.where(self.colours[nearest] == runs, self.classes_of_colours[nearest], np.int16(UNKNOWN))
        return np.repeat(classes, np.diff(np.append(starts, len(flat)))).reshape(colours.shape)

    def _checked(
        self, values: NDArray[np.uint16] | NDArray[np.uint32], classes: NDArray[np.int16], mask: StoredMask
    ) -> NDArray[np.uint8]:
        unknown = classes == UNKNOWN
        if unknown.any():
            raise DecodeError(self._unknown(values, unknown, mask))
        return classes.astype(np.uint8)

    def _unknown(
        self, values: NDArray[np.uint16] | NDArray[np.uint32], unknown: NDArray[np.bool_], mask: StoredMask
    ) -> str:
        row, column = np.argwhere(unknown)[0].tolist()
        by_colour = values.dtype == np.uint32 and (len(self.colours) > 0 or mask.is_colour)
        kinds = [f"#{value:06x}" if by_colour else f"{value}" for value in np.unique(values[unknown]).tolist()]
        word = ("colour" if by_colour else "number") + ("" if len(kinds) == 1 else "s")
        return (
            f"{counted(int(unknown.sum()), 'pixel has', 'pixels have')} the {word} {few(kinds)}, of no class in "
            f"{printable(self.origin)} (the first at row {row}, column {column})"
        )


def build_table(entries: Sequence[NamedClass], origin: str, *, numbers_found: Collection[int] = ()) -> ClassTable:
    """Return the table of named classes, in the order of their numbers.

    Entries of the same name are one class. `numbers_found` are those in the masks: where they are 0 and 255 alone, and
    two classes have names, 255 is the second.
    """
    numbered = [(position if entry.number is None else entry.number, entry) for position, entry in enumerate(entries)]
    numbered.sort(key=lambda pair: pair[0])
    _check_numbers([number for number, _ in numbered], origin)
    if is_binary(numbers_found) and [number for number, _ in numbered] == [0, 1]:
        numbered[1] = (max(numbers_found), numbered[1][1])
    names = list(dict.fromkeys(nfc(entry.name) for _, entry in numbered if not entry.is_ignored))
    if not names:
        raise DataError(f"{origin} names no class that is not ignored.", found=few([entry.name for entry in entries]))
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"{origin} names {len(names):,} classes, more than the {MAX_CLASSES} that a mask can have.",
            try_='give those that are not needed the name "ignore", or classes of one kind the same name',
        )
    index = {name: number for number, name in enumerate(names)}
    numbers = np.full(NUMBERS, UNKNOWN, np.int16)
    numbers[IGNORE] = IGNORE
    colours: dict[Colour, int] = {}
    for number, entry in numbered:
        number_of_class = IGNORE if entry.is_ignored else index[nfc(entry.name)]
        numbers[number] = number_of_class
        if entry.colour is not None and colours.setdefault(entry.colour, number_of_class) != number_of_class:
            raise DataError(f"{origin} gives two classes the colour {entry.colour}.", try_="a colour for each")
    if colours and len(colours) >= len(names) and all(red == green == blue for red, green, blue in colours):
        numbers[:] = UNKNOWN  # grey levels, which masks of one channel have as their numbers
        numbers[IGNORE] = IGNORE
        for (level, _, _), number_of_class in colours.items():
            numbers[level] = number_of_class
    known = np.array([packed_colours(np.array(colour, np.uint8)) for colour in colours], np.uint32)
    order = np.argsort(known)
    return ClassTable(
        tuple(map(valid_utf8, names)),
        _palette(names, [entry for _, entry in numbered]),
        numbers,
        known[order],
        np.array([*colours.values()], np.int16)[order],
        origin,
        tuple(f"{entry.name} ({number})" for number, entry in numbered if entry.is_ignored),
    )


def is_binary(numbers: Collection[int]) -> bool:
    """Return whether masks have the numbers 0 and 255 (or 65,535) and no others: background and foreground."""
    return frozenset(numbers) in BINARY


def _palette(names: Sequence[str], entries: Iterable[NamedClass]) -> Palette:
    colours = {nfc(entry.name): entry.colour for entry in entries if entry.colour is not None}
    default = default_palette(len(names))
    return tuple(colours.get(name, default[number]) for number, name in enumerate(names))


def _check_numbers(numbers: Sequence[int], origin: str) -> None:
    if wrong := [number for number in numbers if not 0 <= number < NUMBERS]:
        raise DataError(f"{origin} has the class number {wrong[0]}.", expected=f"0 to {NUMBERS - 1:,}")
    if repeated := {number for number in numbers if numbers.count(number) > 1}:
        raise DataError(
            f"{origin} gives the number {min(repeated)} to more than one class.", try_="a number for each class"
        )
