"""The rows of a manifest, CSV or JSONL, read one at a time and again when needed: no list of millions is kept."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from vitkit.data.sources.dataset import DataError
from vitkit.regular_file import open_regular
from vitkit.text import counted, few

Row = tuple[int, dict[str, Any]]  # the line it ends on, its cells by column


class ManifestRows:
    """The rows of a file; each iteration reads the file from its start, and an error names the line."""

    def __init__(self, name: str, file: Path, known_columns: Sequence[str]) -> None:
        self.name, self.file, self.known_columns = name, file, known_columns
        self.is_json = file.suffix.lower() in (".jsonl", ".ndjson")

    def columns(self) -> list[str]:
        """Return the names of the columns in the order of their first use; [] where there is no row."""
        if self.is_json:
            return list(dict.fromkeys(column for _, cells in self for column in cells))
        return next((list(cells) for _, cells in self), [])

    def __iter__(self) -> Iterator[Row]:
        try:
            # only "\n" ends a line of JSONL: JSON strings may hold other line separators
            newline = "\n" if self.is_json else ""
            with open_regular(self.file, "r", encoding=self._encoding(), newline=newline) as stream:
                yield from self._json_rows(stream) if self.is_json else self._csv_rows(stream)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise self._not_text() from error

    def _encoding(self) -> str:
        with open_regular(self.file) as stream:  # spreadsheets write either
            return "utf-16" if stream.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"

    def _not_text(self) -> DataError:
        """Return the error of a file that cannot be decoded, with the line, which the stream does not know."""
        content, encoding, line = self.file.read_bytes(), self._encoding(), 1
        try:
            content.decode(encoding)
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
        known = encoding.removesuffix("-sig").upper()
        return DataError(f"{self.name}, line {line}: not {known} text.", try_="save it as UTF-8")

    def _csv_rows(self, stream: IO[str]) -> Iterator[Row]:
        delimiter = self._delimiter(stream.readline())
        stream.seek(0)
        table = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            columns = [cell.strip() for cell in next(table, [])]
            if len(set(columns)) < len(columns):
                raise DataError(f"{self.name} names a column twice: {', '.join(columns)}.")
            for cells in table:
                if not cells:
                    continue
                if len(cells) != len(columns):
                    raise DataError(
                        f"{self.name}, line {table.line_num}: {counted(len(cells), 'cell')} under "
                        f"{counted(len(columns), 'column')} ({few(columns)}).",
                        try_='quotes around a cell that holds the delimiter: "a,b.jpg"',
                    )
                yield table.line_num, dict(zip(columns, cells, strict=True))
        except csv.Error as error:
            raise DataError(f"{self.name}, line {table.line_num}: not CSV: {error}.") from error

    def _delimiter(self, first_line: str) -> str:
        """Return the delimiter that splits the header into the most known columns; odd paths mislead a mere count."""
        header = (first_line.splitlines() or [""])[0].replace('"', "").lower()
        return max(
            ",;\t",
            key=lambda sign: (
                sum(cell.strip() in self.known_columns for cell in header.split(sign)),
                header.count(sign),
            ),
        )

    def _json_rows(self, stream: IO[str]) -> Iterator[Row]:
        for line, content in enumerate(stream, start=1):
            if not content.strip():
                continue
            try:
                cells = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{self.name}, line {line}: not JSON: {error}.",
                    expected='one object per line, such as {"path": "a.jpg", "label": "cat"}',
                ) from error
            if not isinstance(cells, dict):
                raise DataError(f"{self.name}, line {line}: a JSON {type(cells).__name__}, not an object.")
            yield line, cells
