"""Read settings from their sources and combine them: flag > `PENTIMENTO_<SECTION>_…` > `PENTIMENTO_COMMON_…` >
[section] > [common] > default. Each source gives, by field name, a value and the words that name its origin. Text and
TOML values are converted to the declared types; every error names the expected form.
"""

import argparse
import difflib
import math
import os
import sys
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ReplicaKind
from pentimento.domain.shapes import fields_of
from pentimento.settings.declaration import Setting, SettingsError, by_name

T = TypeVar("T")


COMMON = "common"
CONFIG_VARIABLE = "PENTIMENTO_CONFIG"
# Tables that a shared file may have; a service reads its own and [common].
KNOWN_TABLES = frozenset(kind.value for kind in ReplicaKind if kind is not ReplicaKind.IMAGE_EMBEDDER) | {
    *(COMMON, "controller", "edge", "emulated_worker", "emulated_discriminator", "client", "up"),
}
# Settings of some services that look like misspelt ones of others; a test checks that the list is complete.
ALIKE = frozenset({"cascade", "cascades", "default_deadline_s"})


@dataclass(frozen=True)
class Given:
    """Hold a raw value, and its origin ("--threads", "PENTIMENTO_EMBEDDER_THREADS", "threads of [embedder]")."""

    value: Any
    origin: str


class FlagParser(argparse.ArgumentParser):
    """Parse flags with argparse; its errors become a SettingsError of one line."""

    def error(self, message: str) -> NoReturn:
        from pentimento.settings.removed import why_removed  # read for a fault only

        raise SettingsError(message + why_removed(message))


def from_flags(
    section: str, settings: Mapping[str, Setting], argv: Sequence[str]
) -> tuple[dict[str, Given], Path | None]:
    """Return the values given as flags, and the file named by `--config`. `--help` prints and exits 0."""
    parser = flag_parser(section, settings)
    parsed = vars(parser.parse_args(list(argv)))
    config = parsed.pop("config", None)
    given = {name: Given(joined(value), settings[name].flag) for name, value in parsed.items()}
    return given, Path(config) if config else None


def joined(value: Any) -> Any:
    return ",".join(value) if isinstance(value, list) else value


def flag_parser(section: str, settings: Mapping[str, Setting]) -> FlagParser:
    parser = FlagParser(prog=section, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help=f"TOML file with tables [{section}] and [{COMMON}]")
    for one in settings.values():
        help_text = describe(section, one).replace("%", "%%")
        if one.kind is bool:
            parser.add_argument(one.flag, action=argparse.BooleanOptionalAction, help=help_text)
        elif get_origin(one.kind) is tuple:
            parser.add_argument(one.flag, action="append", metavar="A,B", help=help_text)
        else:
            parser.add_argument(one.flag, metavar=metavar(one.kind), help=help_text)
    return parser


def metavar(kind: Any) -> str:
    plain = next((part for part in get_args(kind) if part is not type(None)), kind)
    if hasattr(plain, "__members__"):
        return "|".join(str(member.value) for member in plain)
    return str(getattr(plain, "__name__", plain)).upper()


def describe(section: str, setting: Setting) -> str:
    default = "required" if setting.required else f"default: {shown(setting.default)}"
    return f"{setting.help} ({default}; {variable(section, setting.name)})".strip()


def shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(str(item) for item in default) or "none"
    return str(getattr(default, "value", default)) if default not in (None, "") else "none"


def variable(section: str, name: str) -> str:
    return f"PENTIMENTO_{section}_{name}".upper()


def from_environment(section: str, settings: Mapping[str, Setting], environ: Mapping[str, str]) -> dict[str, Given]:
    """Return the values of `PENTIMENTO_<section>_…`; names that are no setting of this section are rejected."""
    prefix = variable(section, "")
    names = {key[len(prefix) :].lower(): key for key in environ if key.startswith(prefix)}
    known = accept_names(section, names, settings, "environment variable")
    return {name: Given(environ[names[name]], names[name]) for name in known}


def from_file(path: Path, section: str, settings: Mapping[str, Setting]) -> tuple[dict[str, Given], dict[str, Given]]:
    """Return the values of the tables [section] and [common] of a TOML file."""
    tables = read_tables(path, section)
    return from_table(path, section, tables, settings), from_table(path, COMMON, tables, settings)


def read_tables(path: Path, section: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    for name, table in tables.items():
        if name not in KNOWN_TABLES | {section}:
            raise SettingsError(f"{path}: unknown table [{name}]{hint(name, KNOWN_TABLES | {section})}")
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {name} must be a table")
    return tables


def from_table(path: Path, name: str, tables: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Given]:
    table: Mapping[str, Any] = tables.get(name, {})
    known = accept_names(name, {key: key for key in table}, settings, f"key of [{name}] in {path}:")
    return {key: Given(table[key], f"{key} of [{name}] in {path}") for key in known}


def accept_names(section: str, found: Mapping[str, str], settings: Mapping[str, Setting], what: str) -> Iterable[str]:
    """Return the names that are settings. Others are rejected; but a name under `common` may be meant for another
    service, so there only removed settings are rejected, and names that look like a misspelt setting of this service
    and belong to no other."""
    for name, spelt in found.items():
        if name in settings:
            continue
        from pentimento.settings.removed import why_removed

        why = why_removed(name) or hint(name, settings)
        if section != COMMON or why_removed(name) or (name not in ALIKE and why):
            raise SettingsError(f"unknown {what} {spelt}{why}")
    return [name for name in found if name in settings]


def hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.85)
    return f" (did you mean {close[0]}?)" if close else ""


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
