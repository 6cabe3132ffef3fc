"""Convert dataclasses to JSON and back, by the types of their fields: plain values, enumerations, tuples, frozen sets,
mappings by text, other dataclasses, and optional ones.

A field that is None is omitted. A float that is not finite is a text ("nan", "inf"): JSON has no such number, and NaN
differs from itself.

Parse JSON objects such as profiles, with the line of a fault, and read their files by path or directory.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.shapes import fields_of, is_optional

logger = logging.getLogger(__name__)
T = TypeVar("T")


def parsed_json(text: str, field: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises InvalidArgument naming `field` and the faulty line."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument.of(field, f"must be JSON: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.of(field, f"must be JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument.of(field, "must be a JSON object")
    return document


def read_document(path: Path, parse: Callable[[str], T], setting: str) -> T:
    """Return the result of `parse` for the file's text. Raises InvalidArgument naming the setting with the path, the
    file, and the fault."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.of(setting, f"must be files that can be read: {path}: {error}") from error
    except InvalidArgument as error:
        raise InvalidArgument.of(setting, f"{path}: {error.message}") from None


def json_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files, and all .json files of the directories in the order of their names. A path without a suffix
    names a directory: a missing one is skipped with a warning."""
    return [file for path in paths for file in _files_at(path)]


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.json"))
    if not path.suffix and not path.exists():
        logger.warning("no directory %s: it is skipped", path)
        return []
    return [path]


def check_folder(field: str, file: Path) -> None:
    """Raise InvalidArgument for a file in a missing folder, and for a folder."""
    if not file.parent.is_dir():
        raise InvalidArgument.of(field, f"must be in a folder that exists, got {file}")
    if file.is_dir():
        raise InvalidArgument.of(field, f"must be a file, got the folder {file}")


_NOT_FINITE = ("nan", "inf", "-inf")
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class ValueRange:
    """Limit an annotated number, both ends included. A number with limits is finite."""

    low: float
    high: float = math.inf


def to_json(value: object) -> Any:
    """Return the value in the form that `json.dumps` takes."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: to_json(item) for name, item in named if item is not None}
    if isinstance(value, frozenset):
        return sorted(to_json(item) for item in value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(kind: type[T], value: object, where: str = "") -> T:
    """Return a value of `json.loads` as a `kind`. Raises InvalidArgument that names the field by its path from `where`:
    missing, unknown, of another type or outside its limits."""
    found: T = _read(kind, value, where)
    return found


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        return _read_within(arguments[1], _read(arguments[0], value, where), where)
    if is_optional(kind):
        return None if value is None else _read(arguments[0], value, where)
    if origin in (tuple, frozenset):
        return origin(_read_items(arguments, value, where))
    if origin is not None:
        entries = _expect(dict, value, where, "an object")
        return {key: _read(arguments[1], item, _below(where, key)) for key, item in entries.items()}
    if is_dataclass(kind):
        return _read_fields(kind, value, where)
    return _read_enum(kind, value, where) if issubclass(kind, Enum) else _read_plain(kind, value, where)


def _read_within(limits: ValueRange, found: float, where: str) -> float:
    if not limits.low <= found <= limits.high or math.isinf(found):
        at_most = "finite" if math.isinf(limits.high) else f"at most {limits.high:g}"
        raise InvalidArgument.of(where, f"must be at least {limits.low:g} and {at_most}, got {found!r}")
    return found


def _read_items(arguments: tuple[Any, ...], value: Any, where: str) -> list[Any]:
    items = _expect(list, value, where, "a list")
    are_alike = len(arguments) == 1 or arguments[-1] is Ellipsis
    kinds = [arguments[0]] * len(items) if are_alike else list(arguments)
    if len(kinds) != len(items):
        raise InvalidArgument.of(where, f"must have {len(kinds)} entries, got {len(items)}")
    return [_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, items, strict=True))]


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    given, declared = _expect(dict, value, where, "an object"), _fields_of(kind)
    if unknown := given.keys() - declared.keys():
        raise InvalidArgument.of(_below(where, min(unknown)), "is not known")
    if lacking := [name for name, (_, is_needed) in declared.items() if is_needed and name not in given]:
        raise InvalidArgument.of(_below(where, lacking[0]), "is missing")
    # An optional field is omitted when it is None, for any default.
    absent = {name: None for name, (hint, _) in declared.items() if name not in given and is_optional(hint)}
    return kind(**absent, **{name: _read(declared[name][0], given[name], _below(where, name)) for name in given})


def _read_enum(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise InvalidArgument.of(where, f"must be one of {', '.join(str(item.value) for item in kind)}") from None


def _read_plain(kind: type[Any], value: Any, where: str) -> Any:
    # In Python a bool is an int as well; in a file it is not.
    if isinstance(value, bool) and kind is not bool:
        raise InvalidArgument.of(where, f"must be {_NAMES[kind]}, got {value!r}")
    if kind is not float:
        return _expect(kind, value, where, _NAMES[kind])
    return _read_float(value, where)


def _read_float(value: Any, where: str) -> float:
    try:
        found = float(value) if isinstance(value, int | float) or value in _NOT_FINITE else None
    except OverflowError:  # a whole number that no float can hold
        found = None
    # Python reads NaN and Infinity as numbers, which JSON does not have.
    if found is None or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidArgument.of(where, f"must be a number, got {str(value)[:60]!r}")
    return found


def _expect(kind: type[T], value: object, where: str, named: str) -> T:
    if not isinstance(value, kind):
        raise InvalidArgument.of(where, f"must be {named}, got {str(value)[:60]!r}")
    return value


@cache
def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return for each field its type hint, and whether it is required."""
    return {field.name: (field.hint, field.default is None and not field.is_optional) for field in fields_of(kind)}


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
