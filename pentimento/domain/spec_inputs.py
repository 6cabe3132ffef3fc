"""The large parts of a spec: every field of bytes, by its place in it ("controlnets[0].conditioning_image")."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pentimento.domain.generation import GenerationSpec
from pentimento.domain.shapes import fields_of


def take_inputs(spec: GenerationSpec) -> tuple[GenerationSpec, dict[str, bytes]]:
    """The spec without its bytes, and the bytes by their place."""
    taken: dict[str, bytes] = {}

    def take(place: str, data: bytes) -> bytes:
        if data:
            taken[place] = data
        return b""

    return _mapped(spec, "", take), taken


def put_inputs(spec: GenerationSpec, inputs: Mapping[str, bytes]) -> GenerationSpec:
    """The spec with each of `inputs` in its place. ValueError for one that has none."""
    missing = dict(inputs)
    whole: GenerationSpec = _mapped(spec, "", lambda place, data: missing.pop(place, data))
    if missing:
        raise ValueError(f"a spec has no {sorted(missing)}")
    return whole


def _mapped(value: Any, place: str, change: Callable[[str, bytes], bytes]) -> Any:
    """The value with every field of bytes in it changed."""
    if isinstance(value, bytes):
        return change(place, value)
    if isinstance(value, tuple):
        items = tuple(_mapped(item, f"{place}[{index}]", change) for index, item in enumerate(value))
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    changed = {}
    for field in fields_of(type(value)):
        old = getattr(value, field.name)
        # Most fields of a spec are numbers and words.
        if isinstance(old, bytes | tuple) or fields_of(type(old)):
            new = _mapped(old, f"{place}.{field.name}" if place else field.name, change)
            if new is not old:
                changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value
