"""What a settings dataclass declares: names, types, defaults, limits and help of its fields, nested ones flattened."""

import dataclasses
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Setting:
    """One leaf field. `path` leads to it from the root dataclass; the last part is its name, unique over all leaves."""

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
    """A dataclass field with help and limits (both inclusive); `must_exist` asks that a path leads to something.

    `dataclasses.field(metadata={"help": ..., "minimum": ...})` declares the same.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "must_exist": must_exist}
    return dataclasses.field(default=default, metadata=metadata)


def declared(cls: type, path: tuple[str, ...] = (), defaults: Any = MISSING) -> Iterator[Setting]:
    """Every leaf of `cls`, nested ones flattened. `defaults` is an instance whose values replace the class's own."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        default = default_of(field) if defaults is MISSING else getattr(defaults, field.name)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from declared(kind, (*path, field.name), default)
        else:
            yield leaf(field, kind, default, path)


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """The field's default, made when it has a factory; MISSING when it must be given."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def leaf(field: "dataclasses.Field[Any]", kind: Any, default: Any, path: tuple[str, ...]) -> Setting:
    metadata = field.metadata
    return Setting(
        path=(*path, field.name),
        kind=kind,
        default=default,
        help=metadata.get("help", ""),
        minimum=metadata.get("minimum"),
        maximum=metadata.get("maximum"),
        must_exist=metadata.get("must_exist", False),
    )


def by_name(cls: type) -> dict[str, Setting]:
    """The leaves by name. TypeError when two share one, since neither flag nor variable could tell them apart."""
    found: dict[str, Setting] = {}
    for one in declared(cls):
        if one.name in found:
            raise TypeError(f"{cls.__name__}: {'.'.join(one.path)} and {'.'.join(found[one.name].path)} share one name")
        found[one.name] = one
    return found
