"""YOLO's data.yaml: the names of the classes and where the images of each split are.

Only what such files consist of is read: `key: value`, lists and number → name, in blocks or in one line. Anchors, tags
and text over several lines are none of it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from vitkit.data.masks.class_table import NamedClass
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.file_tree import FileTree

MOST_BYTES = 1 << 20
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""")


@dataclass
class DataYaml:
    origin: str
    names: dict[int, str] = field(default_factory=dict)  # number → name
    values: dict[str, str] = field(default_factory=dict)  # the rest: path, train, val, test, nc, …

    def classes(self) -> list[NamedClass]:
        if not self.names:
            raise DataError(f"{self.origin} has no names of classes.", expected="names: [cat, dog], or a name per line")
        return [NamedClass(name, number) for number, name in sorted(self.names.items())]


def read_data_yaml(tree: FileTree, path: str) -> DataYaml:
    """Read a file by its path in the tree."""
    try:
        text = tree.read(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8.", try_="save it as UTF-8") from error
    yaml, key, buffer = DataYaml(path), "", ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw)
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        if buffer:  # a list in brackets that goes on
            buffer += " " + line.strip()
        elif line[0] in " \t-":
            if key == "names":
                _add_name(yaml, line.strip(), number)
            continue
        else:
            key, colon, value = line.partition(":")
            key = key.strip()
            if not colon:
                raise DataError(f"line {number} of {path} is not key: value: {line.strip()}.")
            buffer = value.strip()
        if buffer[:1] in ("[", "{") and buffer[-1:] not in ("]", "}"):
            continue
        if key == "names":
            _add_names(yaml, buffer, number)
        elif buffer:
            yaml.values[key] = _unquoted(buffer)
        buffer = ""
    if buffer:
        raise DataError(f"{path} ends inside the list of {key}.", try_="close the bracket")
    return yaml


def _add_names(yaml: DataYaml, value: str, line: int) -> None:
    """Add the names of one line: [cat, dog] or {0: cat, 1: dog}; nothing where they follow in a block."""
    if not value:
        return
    if value[0] not in "[{":
        raise DataError(f"line {line} of {yaml.origin} should list the names: {value}.", expected="names: [cat, dog]")
    for item in _items(value[1:-1]):
        _add_name(yaml, item if value[0] == "{" else f"- {item}", line)


def _add_name(yaml: DataYaml, item: str, line: int) -> None:
    """Add "- cat", which has the next number, or "0: cat"."""
    if item.startswith("-"):
        yaml.names[len(yaml.names)] = _unquoted(item[1:].strip())
        return
    number, colon, name = item.partition(":")
    if not colon or not _unquoted(number.strip()).isdecimal():
        raise DataError(f"line {line} of {yaml.origin} is not a class: {item}.", expected="- NAME, or NUMBER: NAME")
    yaml.names[int(_unquoted(number.strip()))] = _unquoted(name.strip())


def _without_comment(line: str) -> str:
    """Cut off "# …", unless it is inside quotes or a word."""
    position, starts = 0, True  # whether a value may start here, so that a quote is one
    while position < len(line):
        character = line[position]
        if character == "#" and (position == 0 or line[position - 1].isspace()):
            return line[:position].rstrip()
        if starts and (quoted := _QUOTED.match(line, position)):
            position = quoted.end()
            continue
        starts = character in "[{,:-" or (starts and character.isspace())
        position += 1
    return line.rstrip()


def _items(text: str) -> Iterator[str]:
    """Yield what is between the commas of a list in one line; commas in quotes do not count."""
    position = start = 0
    while position < len(text):
        quoted = _QUOTED.match(text, position) if not _value(text[start:position]) else None
        if text[position] == ",":
            yield text[start:position].strip()
            start = position + 1
        position = quoted.end() if quoted else position + 1
    if text[start:].strip():
        yield text[start:].strip()


def _value(item: str) -> str:
    """Return what follows the number of "0: cat", or all of "cat"."""
    return re.sub(r"^\s*\d+\s*:\s", "", item).strip()


def _unquoted(text: str) -> str:
    if not _QUOTED.fullmatch(text):
        return text
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    try:
        return str(json.loads(text))  # its escapes are JSON's, as far as names of classes need them
    except ValueError:
        return text[1:-1]
