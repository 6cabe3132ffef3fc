"""Read docker-compose files without Compose: resolve `extends`, and fill in defaults of variables."""

import importlib
import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pentimento.settings.declaration import by_name

ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLE = re.compile(r"\$\{\w+:-(?P<default>[^${}]*)\}")
Service = dict[str, Any]
EMBEDDED, REAL = "docker-compose.embedded.yml", "docker-compose.yml"
SETTINGS = {
    "controller": ("controller", "ControllerSettings"),
    "embedder": ("embedder", "EmbedderSettings"),
    "image-embedder": ("embedder", "EmbedderSettings"),
    "vectordb-gateway": ("vectordb_gateway", "GatewaySettings"),
    "unet-worker-heavy": ("unet_worker", "UnetWorkerSettings"),
    "unet-worker-light": ("unet_worker", "UnetWorkerSettings"),
    "controlnet-svc": ("controlnet_svc", "ControlNetSettings"),
    "discriminator": ("discriminator", "DiscriminatorSettings"),
    "frontdoor": ("frontdoor", "FrontdoorSettings"),
    "edge": ("edge", "EdgeSettings"),
}


def read(file: str) -> dict[str, Any]:
    """Return the parsed file, a copy for each caller."""
    return deepcopy(_parsed(file))


@cache
def _parsed(file: str) -> dict[str, Any]:
    text = (ROOT / file).read_text()
    while VARIABLE.search(text):  # a default may have a variable
        text = VARIABLE.sub(lambda found: found["default"], text)
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def services(file: str) -> dict[str, Service]:
    return {name: extended(service) for name, service in read(file)["services"].items()}


def extended(service: Service) -> Service:
    """Return the service merged as Compose does: mappings by key, lists appended, other values replaced."""
    base = service.get("extends")
    if base is None:
        return service
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(extended(read(base["file"])["services"][base["service"]]), own)


def merged(base: Any, own: Any) -> Any:
    if isinstance(base, dict) and isinstance(own, dict):
        return base | {key: merged(base[key], value) if key in base else value for key, value in own.items()}
    return [*base, *own] if isinstance(base, list) and isinstance(own, list) else own


def declared_settings(name: str) -> dict[str, Any]:
    module, cls = SETTINGS[name]
    return dict(by_name(getattr(importlib.import_module(f"services.{module}.settings"), cls)))


def settings_given(service: Service, section: str) -> set[str]:
    """Return the names of the settings that the environment gives to a section of a service."""
    prefix = f"PENTIMENTO_{section}_".upper()
    return {key.removeprefix(prefix).lower() for key in service.get("environment", {}) if key.startswith(prefix)}


def object_store(service: Service) -> tuple[str, set[str]]:
    """Return the URL of the service's objects, and the volumes with their files."""
    environment = service["environment"]
    url = next(value for key, value in environment.items() if key.endswith("_OBJECTS_URL"))
    mounted = (volume.split(":") for volume in service.get("volumes", ()))
    return url, {name for name, target, *_ in mounted if url == f"file://{target}"}


def directories_of_images() -> set[str]:
    """Return the directories that a process may write to where a named volume is mounted over them."""
    made = re.search(r"for directory in (.*?); do install -d -o pentimento", (ROOT / "deploy/Dockerfile").read_text())
    assert made is not None
    return {f"/var/lib/pentimento/{name}" for name in made[1].split()}
