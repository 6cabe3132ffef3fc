"""Read a settings dataclass: names, types, defaults, limits and help of its fields, nested ones flattened."""

import dataclasses
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import Any

from pentimento.domain.shapes import FieldShape, fields_of


class SettingsError(Exception):
    """Report that a setting is unknown, malformed or outside its limits. The message is one line naming it and its
    source."""


@dataclass(frozen=True)
class Setting:
    """Describe one leaf field. `path` leads to it from the root dataclass; the last part is its name."""

    path: tuple[str, ...]
    kind: Any
    default: Any
    help: str
    minimum: float | None = None
    maximum: float | None = None
    must_exist: bool = False

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is MISSING


def setting(
    default: Any = MISSING,
    *,
    help: str,
    minimum: float | None = None,
    maximum: float | None = None,
    must_exist: bool = False,
) -> Any:
    """Declare a dataclass field with help and limits (both inclusive); with `must_exist` a path must exist.

    `dataclasses.field(metadata={"help": ..., "minimum": ...})` declares the same.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "must_exist": must_exist}
    return dataclasses.field(default=default, metadata=metadata)


def declared(cls: type, path: tuple[str, ...] = (), defaults: Any = MISSING) -> Iterator[Setting]:
    """Yield every leaf of `cls`, nested ones flattened. `defaults` is an instance with values that replace the class's
    own."""
    for field in fields_of(cls):
        own = field.default() if field.default is not None else MISSING
        default = own if defaults is MISSING else getattr(defaults, field.name)
        if fields_of(field.hint):
            yield from declared(field.hint, (*path, field.name), default)
        else:
            yield leaf(field, default, path)


def leaf(field: FieldShape, default: Any, path: tuple[str, ...]) -> Setting:
    metadata = field.metadata
    return Setting(
        path=(*path, field.name),
        kind=field.hint,
        default=default,
        help=metadata.get("help", ""),
        minimum=metadata.get("minimum"),
        maximum=metadata.get("maximum"),
        must_exist=metadata.get("must_exist", False),
    )


def by_name(cls: type) -> dict[str, Setting]:
    """Return the leaves by name; a nested class may occur twice, as one. TypeError if two others share a name, since
    neither flag nor variable could distinguish them."""
    found: dict[str, Setting] = {}
    for one in declared(cls):
        if one.name in found and dataclasses.replace(found[one.name], path=one.path) != one:
            raise TypeError(f"{cls.__name__}: {'.'.join(one.path)} and {'.'.join(found[one.name].path)} share one name")
        found[one.name] = one
    return found
