"""Read settings from their sources. Each source gives, by field name, a value and the words that name its origin."""

import argparse
import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from pentimento.domain.fleet import ReplicaKind
from pentimento.settings.declaration import Setting, SettingsError

COMMON = "common"
CONFIG_VARIABLE = "PENTIMENTO_CONFIG"
# Tables that a shared file may have; a service reads its own and [common].
KNOWN_TABLES = frozenset(kind.value for kind in ReplicaKind if kind is not ReplicaKind.IMAGE_EMBEDDER) | {
    *(COMMON, "controller", "edge", "emulated_worker", "emulated_discriminator", "client", "up"),
}
# Settings of some services that look like misspelt ones of others; a test checks that the list is complete.
ALIKE = frozenset(
    {
        *("cascade", "cascades", "device", "devices", "default_deadline_s"),
        *("tls_client_ca_file", "tls_client_cert_file", "tls_client_key_file"),
    }
)


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
