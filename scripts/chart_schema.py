"""Make the schema of the chart's values: the source in `deploy/helm/values.schema.yaml`, with the settings of every
service by their types, limits and choices.

`generate_reference.py` writes it. The source lists the settings that the chart sets itself: the schema omits them, so
that no two values contradict each other.
"""

import json
import re
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from pentimento.settings.declaration import Setting

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "deploy" / "helm" / "values.schema.yaml"
INNERMOST = re.compile(r"\{[^{}]*\}")
KINDS: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema(settings: Mapping[str, Mapping[str, Setting]]) -> str:
    """Return the schema as JSON. `settings` are those of each service, by section and name."""
    document = yaml.safe_load(SOURCE.read_text())
    given = document.pop("given")
    for section, declared in settings.items():
        properties = {name: shape(one) for name, one in declared.items() if name not in given and not is_path(one.kind)}
        document["$defs"][section] = {"type": "object", "additionalProperties": False, "properties": properties}
    document = with_components(document, document["$defs"].pop("component"))
    # Write one line for each innermost object.
    return INNERMOST.sub(lambda found: " ".join(found[0].split()), json.dumps(document, indent=1)) + "\n"


def with_components(part: Any, component: Mapping[str, Any]) -> Any:
    """Return the document with what every component has in each part that is one. A reference would not do: a part that
    allows no other properties knows only its own."""
    if isinstance(part, list):
        return [with_components(item, component) for item in part]
    if not isinstance(part, dict):
        return part
    found = {name: with_components(value, component) for name, value in part.items()}
    if found.pop("component", False):
        found = {**component, **found, "properties": component["properties"] | found.get("properties", {})}
    return found


def shape(one: Setting) -> dict[str, Any]:
    """Return the schema of one setting's value. Raises TypeError for a kind that a pod cannot have."""
    return kind_shape(one.kind, {"minimum": one.minimum, "maximum": one.maximum}) | {"description": one.help}


def is_path(kind: Any) -> bool:
    """Return whether a setting names files: a pod has only those of the chart's volumes."""
    return kind is Path or Path in get_args(kind)


def kind_shape(kind: Any, limits: Mapping[str, float | None]) -> dict[str, Any]:
    if get_origin(kind) is tuple:
        return {"type": "array", "items": kind_shape(get_args(kind)[0], limits)}
    if isinstance(kind, types.UnionType):
        return kind_shape(next(part for part in get_args(kind) if part is not type(None)), limits)
    if issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if kind not in KINDS:
        raise TypeError(f"the chart cannot give a setting of type {kind!r}")
    return {"type": KINDS[kind]} | {name: value for name, value in limits.items() if value is not None}
