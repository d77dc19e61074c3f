"""Files that name the classes of masks, in the forms that people have: a name per line, tables with colours, JSON."""

import contextlib
import csv
import json
import os
import re
from collections.abc import Iterable, Sequence

from vitkit.data.masks.class_table import NamedClass
from vitkit.data.masks.data_yaml import read_data_yaml
from vitkit.data.masks.palette import Colour
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.file_tree import FileTree
from vitkit.stored_json import conform, parse_json

# those with colours come first: a folder may have a list of names, too
NAMES = (
    "class_dict.csv classes.csv label_colors.txt labelmap.txt classes.json id2label.json labels.json classes.txt "
    "labels.txt class_names.txt names.txt codes.txt data.yaml data.yml dataset.yaml"
).split()
MOST_BYTES = 1 << 20
_COLOUR_COLUMNS = (("r", "red"), ("g", "green"), ("b", "blue"))
_NUMBER_COLUMNS = ("number", "id", "index", "value", "class_id", "label_id")
_NAME_COLUMNS = ("name", "class", "label", "class_name", "classes")


def find_class_file(paths: Iterable[str]) -> str | None:
    """Return the file of class names among relative paths: the nearest to the top, then the first kind of `NAMES`."""
    known = {name: position for position, name in enumerate(NAMES)}
    class_files = [
        (path.count("/"), known[name], path) for path in paths if (name := path.rsplit("/", 1)[-1].lower()) in known
    ]
    return min(class_files)[2] if class_files else None


def find_yaml_of_names(tree: FileTree, paths: Iterable[str]) -> str | None:
    """Return the YAML file at the top that names classes, whatever it is called: Ultralytics' users name it themselves.

    None where there is no such file, or more than one.
    """
    named = []
    for path in paths:
        if "/" not in path and path.lower().endswith((".yaml", ".yml")):
            with contextlib.suppress(DataError):  # of something else
                if read_data_yaml(tree, path).names:
                    named.append(path)
    return named[0] if len(named) == 1 else None


def read_class_file(tree: FileTree, path: str) -> list[NamedClass]:
    """Return the classes that a file names."""
    ending = os.path.splitext(path)[1].lower()
    if ending in (".yaml", ".yml"):
        return read_data_yaml(tree, path).classes()
    content = tree.read(path, MOST_BYTES)
    if ending == ".json":
        return _from_json(content, path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8.", try_="save it as UTF-8") from error
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    classes = _from_csv(lines, path) if ending == ".csv" else _from_lines(lines, path)
    if not classes:
        raise DataError(f"{path} names no class.", expected="a name per line")
    return classes


def _from_lines(lines: Sequence[str], shown: str) -> list[NamedClass]:
    """Return the classes of text lines, all of one form: the first form that every line has."""
    for parse in (_red_green_blue_name, _name_with_colour, _number_and_name):
        with contextlib.suppress(ValueError):  # a number that is no part of a colour
            parsed = [one for line in lines if (one := parse(line))]
            if len(parsed) == len(lines):
                return parsed
    return [NamedClass(line) for line in lines]


def _red_green_blue_name(line: str) -> NamedClass | None:
    """Parse "64 128 64  Animal", as of CamVid's label_colors.txt."""
    match = re.fullmatch(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\D.*)", line)
    return NamedClass(match[4].strip(), colour=_colour(match.group(1, 2, 3))) if match else None


def _name_with_colour(line: str) -> NamedClass | None:
    """Parse "road:128,64,128::", as of CVAT's labelmap.txt, and "road 128 64 128"."""
    match = re.fullmatch(r"(.*?\S)[\s:,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})(:.*)?", line)
    return NamedClass(match[1].rstrip(":,"), colour=_colour(match.group(2, 3, 4))) if match else None


def _number_and_name(line: str) -> NamedClass | None:
    """Parse "3 road", "3: road" and "3,road"."""
    match = re.fullmatch(r"(\d{1,5})\s*[\s:,;=]\s*(\S.*)", line)
    return NamedClass(match[2], number=int(match[1])) if match else None


def _from_csv(lines: Sequence[str], shown: str) -> list[NamedClass]:
    """Return the classes of a table; without a header of known columns, it is name,r,g,b or names alone."""
    if not lines:
        return []
    separator = max(",;\t", key=lines[0].count)
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)]
    header = [cell.lower() for cell in rows[0]]
    name = _column(header, _NAME_COLUMNS)
    if name is None:
        return _from_lines([" ".join(row) for row in rows], shown)
    number = _column(header, _NUMBER_COLUMNS)
    colour = [_column(header, names) for names in _COLOUR_COLUMNS]
    classes = []
    for line, row in enumerate(rows[1:], 2):
        try:
            classes.append(
                NamedClass(
                    row[name],
                    None if number is None else int(row[number]),
                    _colour([row[column] for column in colour if column is not None]) if None not in colour else None,
                )
            )
        except (IndexError, ValueError) as error:
            raise DataError(
                f"line {line} of {shown} is not a class: {separator.join(row)}.", expected=lines[0]
            ) from error
    return classes


def _column(header: Sequence[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _colour(values: Sequence[str]) -> Colour:
    red, green, blue = (int(value) for value in values)
    if max(red, green, blue) > 255 or min(red, green, blue) < 0:
        raise ValueError(f"{red} {green} {blue} is no colour")
    return red, green, blue


def _from_json(content: bytes, shown: str) -> list[NamedClass]:
    """Return the classes of a list of names, or of an object of number → name or name → number."""
    value = parse_json(content, list[str] | dict[str, str | int], shown, error=DataError)
    if isinstance(value, list):
        return [NamedClass(name) for name in value]
    if all(isinstance(number, int) for number in value.values()):
        return [NamedClass(name, number) for name, number in value.items()]
    names = conform(value, dict[str, str], shown, error=DataError)
    if wrong := [number for number in names if not number.isdecimal()]:
        raise DataError(f"{shown} has {json.dumps(wrong[0])} where a class number should be.", expected='{"0": "name"}')
    return [NamedClass(name, int(number)) for number, name in names.items()]
