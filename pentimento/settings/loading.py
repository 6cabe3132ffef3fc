"""Combine the sources: flag > `PENTIMENTO_<SECTION>_…` > `PENTIMENTO_COMMON_…` > [section] > [common] > default."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
from pentimento.settings.values import convert

T = TypeVar("T")


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
