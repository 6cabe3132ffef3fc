"""Fields of dataclasses as their type hints declare them, read once for each class."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class FieldShape:
    """A field of a dataclass. `hint` is its type hint, annotations included; `default` makes its default value, None
    where the field has none."""

    name: str
    hint: Any
    default: Callable[[], Any] | None
    metadata: Mapping[str, Any]

    @property
    def is_optional(self) -> bool:
        """Return whether the field may be None."""
        return is_optional(self.hint)


_FIELDS: dict[type, tuple[FieldShape, ...]] = {}


def fields_of(kind: type) -> tuple[FieldShape, ...]:
    """Return the fields of a dataclass in their order, and none for any other class."""
    if kind not in _FIELDS:
        _FIELDS[kind] = _read(kind) if dataclasses.is_dataclass(kind) else ()
    return _FIELDS[kind]


def _read(kind: type) -> tuple[FieldShape, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        FieldShape(field.name, hints[field.name], _default_of(field), field.metadata)
        for field in dataclasses.fields(kind)
    )


def is_optional(hint: Any) -> bool:
    """Return whether a type hint allows None."""
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


def without_none(hint: Any) -> Any:
    """Return a type hint without the None that it may allow."""
    if not is_optional(hint):
        return hint
    return functools.reduce(lambda one, other: one | other, (kind for kind in get_args(hint) if kind is not NoneType))


def members_of(hint: Any) -> tuple[type, ...]:
    """Return the classes of a union, and none for a type hint of another kind."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else ()


def item_of(hint: Any) -> tuple[type | None, Any]:
    """Return the container of a type hint and its items' type: (tuple, str) of `tuple[str, ...]`, (None, str) of
    `str`."""
    origin = get_origin(hint)
    if origin in (tuple, frozenset):
        return origin, get_args(hint)[0]
    return None, hint


def _default_of(field: "dataclasses.Field[Any]") -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    return (lambda: field.default) if field.default is not MISSING else None
