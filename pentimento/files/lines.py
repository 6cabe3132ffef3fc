"""Read text files line by line, gzipped or not, prompts and tables with a head among them; an error names file, line,
field and limit.
"""

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pentimento.domain.errors import InvalidArgument, NotFound

_UTF_8 = "utf-8-sig"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end), without empty lines and the byte order mark of spreadsheets.
    NotFound, or InvalidArgument if the file is not UTF-8 text (or not gzip although its name ends in .gz)."""
    try:
        with gzip.open(path, "rt", encoding=_UTF_8) if path.suffix == ".gz" else path.open(encoding=_UTF_8) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise NotFound("NO_SUCH_FILE", f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InvalidArgument.of(str(path), "must be UTF-8 text") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidArgument.of(str(path), f"must be a whole gzip file: {error}") from None


class Line:
    """Hold the fields of one line; `where` is its file and number."""

    def __init__(self, path: Path, number: int, fields: Mapping[str, Any]) -> None:
        self.where = f"{path}:{number}"
        self._fields = fields

    @classmethod
    def of_json(cls, path: Path, number: int, text: str) -> "Line":
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise InvalidArgument.of(f"{path}:{number}", "must be a JSON object")
        return cls(path, number, fields)

    def wrong(self, name: str, limit: str) -> InvalidArgument:
        return InvalidArgument.of(f"{self.where}: {name}", limit)

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def raw(self, name: str) -> Any:
        if name not in self._fields:
            raise self.wrong(name, "is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        value = self.raw(name)
        if not isinstance(value, str):
            raise self.wrong(name, f"must be text, got {type(value).__name__}")
        return value

    def flag(self, name: str) -> bool:
        value = self.raw(name)
        if not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, got {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.raw(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "must be a list of texts")
        return tuple(value)

    def number(self, name: str, at_least: float = 0.0) -> float:
        """Return a finite number of at least `at_least`. Numbers of a CSV arrive as text."""
        value = self.raw(name)
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not at_least <= number < math.inf:
            raise self.wrong(name, f"must be a number of at least {at_least:g} and finite, got {value!r}")
        return number

    def count(self, name: str, at_least: int = 0) -> int:
        number = self.number(name, at_least)
        if number != int(number):
            raise self.wrong(name, f"must be a whole number, got {number:g}")
        return int(number)

    def objects(self, name: str) -> dict[str, Any]:
        value = self.raw(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return value


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return in the file's order the lines of a .txt, or the field `prompt` (or `caption`) of a .tsv, .csv or .jsonl.
    Raises InvalidArgument, also for a file without prompts."""
    prompts = _prompts(path)
    if not prompts:
        raise InvalidArgument.of(str(path), "must have at least one prompt")
    return prompts


def _prompts(path: Path) -> tuple[str, ...]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind == ".txt":
        return tuple(text for _, text in numbered_lines(path))
    if kind == ".jsonl":
        return tuple(Line.of_json(path, number, text).text("prompt") for number, text in numbered_lines(path))
    if kind not in (".tsv", ".csv"):
        raise InvalidArgument.of(str(path), "must be a .txt, .tsv, .csv or .jsonl file (or one of them with .gz)")
    lines = table_lines(path, "\t" if kind == ".tsv" else ",")
    return tuple(line.text("caption" if line.has("caption") else "prompt") for line in lines)


def table_lines(path: Path, delimiter: str) -> Iterator[Line]:
    """Yield the rows of a table with a head, by its names. InvalidArgument for a row of another length, or invalid
    CSV."""
    rows = _rows(path, delimiter)
    _, names = next(rows, (1, []))
    for number, values in rows:
        if len(values) != len(names):
            raise InvalidArgument.of(f"{path}:{number}", f"must have {len(names)} fields, got {len(values)}")
        yield Line(path, number, dict(zip(names, values, strict=True)))


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's last line, and its values. Quoted values of CSV may hold the ends of lines."""
    lines = list(numbered_lines(path))
    if delimiter == "\t":
        # A tab-separated file has no quotes; a prompt may hold any quotation mark.
        yield from ((number, text.split("\t")) for number, text in lines)
        return
    rows = csv.reader((text + "\n" for _, text in lines), delimiter=delimiter, strict=True)
    try:
        for values in rows:
            yield lines[rows.line_num - 1][0], values
    except csv.Error as error:
        raise InvalidArgument.of(f"{path}:{lines[rows.line_num - 1][0]}", f"must be CSV: {error}") from None
