"""Read the variables of the chart's containers by each service's own settings, without a cluster.

An unknown name, a value of another type or beyond its limit, a missing required setting, and settings that contradict
each other are findings, as they would end the process at its start.
"""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.suites.chart_rules import SECRET_PLACES, RenderedRelease, component, named, variables
from pentimento.settings import SettingsError, load_settings
from pentimento.settings.declaration import by_name

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "zoo" / "weights"
# The section of a service's settings, and their class.
SETTINGS = {
    "controller": ("controller", "ControllerSettings"),
    "embedder": ("embedder", "EmbedderSettings"),
    "vectordb-gateway": ("vectordb_gateway", "GatewaySettings"),
    "unet-worker": ("unet_worker", "UnetWorkerSettings"),
    "controlnet-svc": ("controlnet_svc", "ControlNetSettings"),
    "discriminator": ("discriminator", "DiscriminatorSettings"),
    "frontdoor": ("frontdoor", "FrontdoorSettings"),
    "edge": ("edge", "EdgeSettings"),
}
POD = {"POD_NAME": "pod-0", "POD_IP": "10.0.0.1"}


@cache
def settings_class(service: str) -> Any:
    section, name = SETTINGS[service]
    return getattr(importlib.import_module(f"services.{section}.settings"), name)


@cache
def image_variables() -> Mapping[str, str]:
    """Return the variables that every service's image has."""
    stage = (ROOT / "deploy" / "Dockerfile").read_text().partition("FROM base AS service\n")[2].partition("\nFROM ")[0]
    lines = re.findall(r"^ENV (.*)$", stage, re.MULTILINE)
    return dict(part.partition("=")[::2] for line in lines for part in line.split())


def started_with(container: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return a container's variables as its process would have them; mounted files lie in the folder, models are the
    tiny ones, or empty folders."""
    found = {}
    for key, value in (dict(image_variables()) | variables(container)).items():
        for name, text in POD.items():
            value = value.replace(f"$({name})", text)
        found[key] = ",".join(mounted(part, folder) for part in value.split(","))
    return found


def mounted(text: str, folder: Path) -> str:
    """Return where the file lies that a pod would have at this path; other text unchanged."""
    if text == "/models" or text.startswith("/models/"):
        own = TINY / text.removeprefix("/models").lstrip("/")
        (folder / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return str(own if own.exists() else folder / text.lstrip("/"))
    if text == "/embeddings":
        return str(folder)
    if text.startswith(SECRET_PLACES):
        file = folder / text.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return str(file)
    return text


def loaded(service: str, container: Mapping[str, Any], folder: Path) -> Any:
    """Return the settings with which the container's process would start. Raises SettingsError."""
    section, _ = SETTINGS[service]
    given = started_with(container, folder)
    known = {f"PENTIMENTO_{section}_{name}".upper() for name in by_name(settings_class(service))} | common_variables()
    strange = sorted(name for name in given if name.startswith("PENTIMENTO_") and name not in known)
    if strange:
        raise SettingsError(f"{section}: there is no {', '.join(strange)}")
    return load_settings(settings_class(service), section, [], given)


@cache
def common_variables() -> frozenset[str]:
    """Return the common variables that some service reads; the others ignore them."""
    return frozenset(
        f"PENTIMENTO_COMMON_{name}".upper() for service in SETTINGS for name in by_name(settings_class(service))
    )


def environments(manifests: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the variables of each workload's container, by component; each pool of workers is one."""
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: variables(
            one["spec"]["template"]["spec"]["containers"][0]
        )
        for one in RenderedRelease(manifests).workloads
    }


def settings_findings(release: RenderedRelease, folder: Path) -> Iterator[str]:
    """Yield why a container would not start."""
    for one in release.workloads:
        (container,) = one["spec"]["template"]["spec"]["containers"]
        try:
            settings = loaded(component(one), container, folder)
        except SettingsError as error:
            yield f"{named(one)}: {error}"
            continue
        values = {name: attrgetter(".".join(each.path))(settings) for name, each in by_name(type(settings)).items()}
        yield from (f"{named(one)}: {fault}" for fault in port_faults(container, values))


def port_faults(container: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ports that a container declares and its process does not open. `values` are its settings by name."""
    listening = [*values["listen"], values["metrics_listen"], values.get("http_listen", "")]
    listening += values.get("admin_listen", ())
    opened = {int(address.rpartition(":")[2]) for address in listening if address and not address.startswith("unix:")}
    declared = {port["containerPort"] for port in container["ports"]}
    if declared != opened:
        yield f"declares the ports {sorted(declared)}, opens {sorted(opened)}"
    if "unix:/tmp/pentimento.sock" not in values["listen"]:
        yield "has no socket for probes"
