"""What the docker-compose files declare, read without Compose: `extends` followed, defaults of variables filled in."""

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLE = re.compile(r"\$\{\w+:-(?P<default>[^}]*)\}")
Service = dict[str, Any]


def read(file: str) -> dict[str, Any]:
    """What the file says; the caller's own."""
    return deepcopy(_parsed(file))


@cache
def _parsed(file: str) -> dict[str, Any]:
    text = VARIABLE.sub(lambda found: found["default"], (ROOT / file).read_text())
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def services(file: str) -> dict[str, Service]:
    return {name: extended(service) for name, service in read(file)["services"].items()}


def extended(service: Service) -> Service:
    """As Compose merges: mappings key by key, lists one after the other, anything else replaced."""
    base = service.get("extends")
    if base is None:
        return service
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(extended(read(base["file"])["services"][base["service"]]), own)


def merged(base: Any, own: Any) -> Any:
    if isinstance(base, dict) and isinstance(own, dict):
        return base | {key: merged(base[key], value) if key in base else value for key, value in own.items()}
    return [*base, *own] if isinstance(base, list) and isinstance(own, list) else own
