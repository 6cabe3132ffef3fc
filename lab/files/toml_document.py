"""Read TOML files written by hand (fleets, scenarios) by name, type and limit; an error names file, line and field.

table = read_toml(path)
speed = table.number("speed", 1.0, minimum=0.01, maximum=100)
table.close()                     # rejects fields that were not read
"""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pentimento.domain.errors import InvalidArgument, NotFound

Position = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_REQUIRED: Any = object()


def read_toml(path: Path) -> "TomlTable":
    """NotFound without the file; InvalidArgument, with the line, for one that is no TOML."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise NotFound("FILE_MISSING", f"{path}: not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.of(str(path), f"must be a readable UTF-8 file ({type(error).__name__})") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, name: str) -> "TomlTable":
    """`name` stands for the file in errors."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument.of(name, f"must be TOML: {error}") from None
    return TomlTable(values, (), name, line_numbers(text))


class TomlTable:
    """One table of a document; `name` is the file's."""

    def __init__(self, values: Mapping[str, Any], position: Position, name: str, lines: Mapping[Position, int]) -> None:
        self._values = values
        self._position = position
        self._name = name
        self._lines = lines
        self._asked: set[str] = set()
        self._inner: list[TomlTable] = []

    @property
    def file(self) -> str:
        return self._name

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the field names in their order, for tables with the writer's own keys."""
        return tuple(self._values)

    def text(self, field: str, default: str = _REQUIRED) -> str:
        value: str = self._take(field, str, "a text", default)
        return value

    def flag(self, field: str, default: bool = _REQUIRED) -> bool:
        value: bool = self._take(field, bool, "true or false", default)
        return value

    def whole(self, field: str, default: int = _REQUIRED, *, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        value: int = self._take(field, int, "a whole number", default)
        self._check_limits(field, value, minimum, maximum)
        return value

    def number(
        self, field: str, default: float = _REQUIRED, *, minimum: float = 0.0, maximum: float = math.inf
    ) -> float:
        """Finite, in `minimum`..`maximum`."""
        value = self._take(field, (int, float), "a number", default)
        self._check_limits(field, value, minimum, maximum)
        return float(value)

    def texts(self, field: str, default: Sequence[str] = _REQUIRED) -> tuple[str, ...]:
        values = self._take(field, list, "a list of texts", default)
        if not all(isinstance(value, str) for value in values):
            raise self.error(field, "must be a list of texts")
        return tuple(values)

    def numbers(self, field: str, default: Sequence[float] = _REQUIRED, *, minimum: float = 0.0) -> tuple[float, ...]:
        """Finite ones, each at least `minimum`."""
        values = self._take(field, list, "a list of numbers", default)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.error(field, "must be a list of numbers")
            self._check_limits(field, value, minimum, math.inf)
        return tuple(float(value) for value in values)

    def table(self, field: str) -> "TomlTable | None":
        """None where there is none."""
        value = self._take(field, dict, "a table", None)
        return None if value is None else self._table(value, (*self._position, field))

    def tables(self, field: str) -> "list[TomlTable]":
        """An array of tables, empty where there is none."""
        values = self._take(field, list, "an array of tables", [])
        if not all(isinstance(value, dict) for value in values):
            raise self.error(field, "must be an array of tables")
        return [self._table(value, (*self._position, field, index)) for index, value in enumerate(values)]

    def path(self, field: str, default: Path | None = _REQUIRED) -> Path | None:
        """Relative to the file that names it."""
        value = self._take(field, str, "a path", default)
        return (Path(self._name).parent / value).resolve() if isinstance(value, str) else default

    def close(self) -> None:
        """Raise InvalidArgument for the first field that was not read, here or in the tables that were."""
        for field in self._values:
            if field not in self._asked:
                known = ", ".join(sorted(self._asked)) or "none"
                raise self.error(field, f"is no field that is known here ({known})")
        for table in self._inner:
            table.close()

    def error(self, field: str, description: str) -> InvalidArgument:
        """Return the error for a field of this table, to be raised."""
        position = (*self._position, *([field] if field else []))
        return InvalidArgument.of(f"{self._name}:{self._line(position)}: {_dotted(position)}", description)

    def _table(self, value: Mapping[str, Any], position: Position) -> "TomlTable":
        table = TomlTable(value, position, self._name, self._lines)
        self._inner.append(table)
        return table

    def _take(self, field: str, kind: type | tuple[type, ...], named: str, default: Any) -> Any:
        self._asked.add(field)
        value = self._values.get(field, default)
        if value is _REQUIRED:
            raise self.error(field, f"must be given: {named}")
        if field not in self._values:
            return value
        # To Python a bool is an int as well; to people it is not.
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise self.error(field, f"must be {named}, got {type(value).__name__}")
        return value

    def _check_limits(self, field: str, value: float, minimum: float, maximum: float) -> None:
        # NaN fails every comparison, so compare this way round.
        if not (minimum <= value <= maximum and math.isfinite(value)):
            limit = f"at least {minimum:g}" if maximum in (math.inf, 2**63 - 1) else f"{minimum:g} to {maximum:g}"
            raise self.error(field, f"must be {limit}, got {value}")

    def _line(self, position: Position) -> int:
        """Return the line of the field, or of the closest table around it."""
        while position and position not in self._lines:
            position = position[:-1]
        return self._lines.get(position, 1)


def line_numbers(text: str) -> dict[Position, int]:
    """Where the tables and keys of a valid document begin; lines count from 1. Keys inside inline tables and strings
    of several lines are not looked for."""
    found: dict[Position, int] = {}
    counts: dict[Position, int] = {}
    current: Position = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            current = _entered(_parts(header[2]), header[1] == "[[", counts)
            found.setdefault(current, number)
        elif key := _KEY.match(line):
            found.setdefault((*current, *_parts(key[1])), number)
    return found


def _entered(parts: Sequence[str], is_array: bool, counts: dict[Position, int]) -> Position:
    """The position of a header's table: the newest element of every array on the way, a new one of an array of its
    own."""
    position: Position = ()
    for index, part in enumerate(parts):
        position = (*position, part)
        if index == len(parts) - 1 and is_array:
            counts[position] = counts.get(position, 0) + 1
        if position in counts:
            position = (*position, counts[position] - 1)
    return position


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _dotted(position: Position) -> str:
    text = ""
    for part in position:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
