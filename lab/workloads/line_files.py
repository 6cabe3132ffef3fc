"""Files of a header and lines of JSON, `.gz` or not: runs and workloads. Written whole or not at all."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line, numbered_lines
from pentimento.files.private_files import replace_file


def save_lines(path: Path, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the header and a line for each mapping. The same values are the same bytes: no name and no time inside."""
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (header, *lines)).encode()
    replace_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def open_lines(path: Path, format_number: int) -> tuple[Line, Iterator[Line]]:
    """Return the header and the lines that follow. Raises NotFound, and InvalidArgument for a file without a header or
    of another format."""
    lines = numbered_lines(path)
    first = next(lines, None)
    if first is None:
        raise InvalidArgument.of(str(path), "must have a header, got an empty file")
    header = Line.of_json(path, *first)
    if header.count("format") != format_number:
        raise header.wrong("format", f"must be {format_number}, got {header.count('format')}")
    return header, (Line.of_json(path, number, text) for number, text in lines)


def check_count(header: Line, field: str, found: int) -> None:
    """Raise InvalidArgument where the header names another number of lines than were found."""
    if found != header.count(field):
        raise header.wrong(field, f"must be the number of lines that follow, {found}: a part is missing")


def sparse(of: type) -> Callable[[Any], dict[str, Any]]:
    """Return what turns a value of a dataclass into a mapping without the fields that are at their defaults."""
    defaults = {field.name: field.default for field in fields(of) if field.default is not MISSING}
    names = [field.name for field in fields(of)]

    def mapping(value: Any) -> dict[str, Any]:
        found = {name: getattr(value, name) for name in names}
        return {name: each for name, each in found.items() if name not in defaults or each != defaults[name]}

    return mapping
