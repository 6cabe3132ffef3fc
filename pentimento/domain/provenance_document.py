"""Provenance of an image as plain JSON, as PNGs carry it and HTTP answers it.

For other readers: every field is present, None is null, images are digests. `pentimento.files.json_values` writes
values that are read back.
"""

import dataclasses
import hashlib
from enum import Enum
from typing import Any

from pentimento.domain.generation import Provenance
from pentimento.domain.shapes import fields_of


def provenance_as_json(provenance: Provenance) -> dict[str, Any]:
    """Return the provenance as plain JSON values. Image bytes are named by their digest, inputs that the frontdoor
    left out under `inputs`."""
    return {field.name: as_json(getattr(provenance, field.name)) for field in fields_of(Provenance)}


def as_json(value: Any) -> Any:
    """Return the value as plain JSON. A start says which kind it is, since its fields alone do not."""
    if isinstance(value, bytes):
        return "sha256:" + hashlib.sha256(value).hexdigest() if value else ""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(as_json(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: as_json(getattr(value, field.name)) for field in fields_of(type(value))}
        return {"kind": type(value).__name__, **fields} if type(value).__name__.startswith("From") else fields
    return value
