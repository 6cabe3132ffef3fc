"""The large parts of a spec: every field of bytes, by its place in it ("controlnets[0].conditioning_image")."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pentimento.domain.generation import GenerationSpec


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
        return tuple(_mapped(item, f"{place}[{index}]", change) for index, item in enumerate(value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in dataclasses.fields(value)]
    fields = {name: _mapped(getattr(value, name), f"{place}.{name}" if place else name, change) for name in names}
    return dataclasses.replace(value, **fields)
