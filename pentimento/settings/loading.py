"""Combine the sources: flag > `PENTIMENTO_<SECTION>_…` > `PENTIMENTO_COMMON_…` > [section] > [common] > default.
Convert text and TOML values to the declared types; every error names the expected form."""

import math
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.shapes import fields_of
from pentimento.settings.declaration import Setting, SettingsError, by_name
from pentimento.settings.sources import (
    COMMON,
    CONFIG_VARIABLE,
    Given,
    from_environment,
    from_file,
    from_flags,
    read_tables,
    variable,
)

T = TypeVar("T")


TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})


def convert(setting: Setting, value: Any) -> Any:
    """Return `value` (text of a flag or variable, or from TOML) as the setting's type, within its limits; else
    ValueError."""
    converted = to_kind(setting.kind, value)
    check_limits(setting, converted)
    return converted


def to_kind(kind: Any, value: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        inner = next(part for part in get_args(kind) if part is not type(None))
        return None if value == "" else to_kind(inner, value)
    if get_origin(kind) is tuple:
        return to_tuple(get_args(kind)[0], value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return to_enum(kind, value)
    return to_scalar(kind, value)


def to_tuple(item_kind: Any, value: Any) -> tuple[Any, ...]:
    """Return the items of comma-separated text, or of a TOML array."""
    if isinstance(value, str):
        items: list[Any] = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list):
        items = value
    else:
        raise ValueError(f"must be a list or comma-separated text, got {value!r}")
    return tuple(to_kind(item_kind, item) for item in items)


def to_enum(kind: type[Enum], value: Any) -> Enum:
    for member in kind:
        if value == member.value:
            return member
    raise ValueError(f"must be one of {', '.join(str(member.value) for member in kind)}, got {value!r}")


def to_scalar(kind: Any, value: Any) -> Any:
    if kind in NUMBERS:
        return NUMBERS[kind](value)
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {value!r}")
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    if kind is Path:
        return to_path(value)
    if kind is str:
        return value
    raise TypeError(f"settings cannot be of type {kind!r}")


def to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in TRUE | FALSE:
        return value.lower() in TRUE
    raise ValueError(f"must be true or false, got {value!r}")


def to_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str):
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"must be a whole number, got {value!r}")


def to_float(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number, got {value!r}")
    return number


NUMBERS: dict[type, Callable[[Any], Any]] = {bool: to_bool, int: to_int, float: to_float}


def to_path(value: str) -> Path:
    if not value:
        raise ValueError("must be a path, got an empty text")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"no home of that name: {value}") from None


def check_limits(setting: Setting, value: Any) -> None:
    """Check the limits of `value`, or of each item. ValueError names the violated limit."""
    if isinstance(value, tuple):
        for item in value:
            check_limits(setting, item)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if setting.minimum is not None and value < setting.minimum:
            raise ValueError(f"must be at least {setting.minimum}, got {value}")
        if setting.maximum is not None and value > setting.maximum:
            raise ValueError(f"must be at most {setting.maximum}, got {value}")
    if setting.must_exist and isinstance(value, Path):
        check_there(value)


def check_there(path: Path) -> None:
    """Check that the path exists. Raises ValueError, also if the path cannot be accessed."""
    try:
        there = path.exists()
    except OSError as error:
        raise ValueError(f"{error.strerror}: {path}") from None
    if not there:
        raise ValueError(f"no such file or directory: {path}")


def load_settings(
    cls: type[T], section: str, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> T:
    """Return an instance of the frozen dataclass `cls`.

    Fields may be str, int, float, bool, Path, an Enum, tuple[…, ...] or X | None; nested dataclasses are flattened by
    the names of their fields. `argv` (without the program) and `environ` default to the process's own. SettingsError
    is one line that names the setting, the limit and the place.
    """
    settings = by_name(cls)
    try:
        argv = sys.argv[1:] if argv is None else argv
        given = gather(section, settings, argv, os.environ if environ is None else environ)
        values = {name: value_of(one, given.get(name)) for name, one in settings.items()}
        return build(cls, values)
    except SettingsError as error:
        raise SettingsError(f"{section}: {error}") from error


def setting_of(cls: type, name: str, section: str, config: Path | None, environ: Mapping[str, str]) -> Any:
    """Return one setting of a section, for a process that knows no others: as `load_settings` finds it, without flags.
    `config` is the file; without one the environment names it. Raises SettingsError."""
    one, sections = by_name(cls)[name], (section, COMMON)
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    try:
        tables = read_tables(config, section) if config is not None else {}
        given = [
            *(Given(environ[key], key) for part in sections if (key := variable(part, name)) in environ),
            *(
                Given(tables[part][name], f"{name} of [{part}] in {config}")
                for part in sections
                if name in tables.get(part, {})
            ),
        ]
        return value_of(one, given[0] if given else None)
    except SettingsError as error:
        raise SettingsError(f"{section}: {error}") from error


def gather(
    section: str, settings: Mapping[str, Setting], argv: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Given]:
    """Return the winning value of every setting that any source gives."""
    flags, config = from_flags(section, settings, argv)
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    own_table, common_table = from_file(config, section, settings) if config else ({}, {})
    common_environment = from_environment(COMMON, settings, environ)
    return common_table | own_table | common_environment | from_environment(section, settings, environ) | flags


def value_of(setting: Setting, given: Given | None) -> Any:
    if given is None and setting.required:
        raise SettingsError(f"{setting.flag} is required")
    if given is None:
        return setting.default
    try:
        return convert(setting, given.value)
    except ValueError as error:
        where = "" if given.origin == setting.flag else f" (from {given.origin})"
        raise SettingsError(f"{setting.flag} {error}{where}") from error


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build the dataclass and its nested ones; an error of their `__post_init__` becomes a SettingsError."""
    arguments = {
        field.name: build(field.hint, values) if fields_of(field.hint) else values[field.name]
        for field in fields_of(cls)
    }
    try:
        return cls(**arguments)
    except (ValueError, InvalidArgument) as error:
        raise SettingsError(str(error)) from error
