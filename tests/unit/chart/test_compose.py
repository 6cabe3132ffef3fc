"""The chart gives every service the settings of the compositions."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.make_secrets import main as make_secrets
from lab.fixtures.charts.combinations import EMBEDDED, EXTERNAL
from lab.fixtures.charts.rendering import CHART, Manifest
from lab.fixtures.charts.starting import SETTINGS, environments
from tests.compose.declared import ROOT, services

Rendering = Callable[..., list[Manifest]]

# The chart's values that match the composition.
SIGNER = {"c2paCertificate": {"name": "signer", "key": "tls-combined.pem"}}
RECEIPTS = {"receiptKey": {"key": "receipt_key"}}
TRACED = {"tracing": {"endpoint": "http://collector:4317"}}
CHOSEN = {**EXTERNAL, **TRACED, "frontdoor": {"admin": True}, "secrets": {**SIGNER, **RECEIPTS}}
FORMS = {
    "docker-compose.embedded.yml": {**EMBEDDED, **TRACED, "auth": {"enabled": False}, "secrets": SIGNER},
    "docker-compose.yml": CHOSEN,
}
# Variables that differ between chart and composition: addresses, and places in a network or volume.
PLACES = re.compile(
    r"_(ADDRESS|ADDRESSES|ENDPOINT|URL|FILE|INSTANCE_ID|LISTEN|CACHE_DIR|CLAIMS_DIR|CONFIG|ALLOWED_HOSTS)$"
)
# Sets of more than a single value of the chart, by the variable of the compositions.
CHOICES: dict[str, Any] = {
    "PENTIMENTO_HEAVY_MODEL": {"serving": {"heavy": "sdxl"}},
    "PENTIMENTO_LIGHT_MODEL": {"serving": {"light": "sdxl-turbo"}},
    "PENTIMENTO_SMALL_MODELS": {"serving": {"small": ["tiny-flow", "tiny-light"]}},
    "PENTIMENTO_ENCODER": {"serving": {"encoder": "clip"}},
    "PENTIMENTO_IMAGE_ENCODER": {"serving": {"imageEncoder": "siglip"}},
    "PENTIMENTO_IMAGE_EMBEDDER": {"serving": {"imageEncoder": "siglip"}},
    "PENTIMENTO_WEIGHTS": {"serving": {"weights": "int8"}},
    "PENTIMENTO_ALLOCATOR": {"serving": {"allocator": "joint"}},
    "PENTIMENTO_SLO_S": {"serving": {"sloSeconds": 7.5}},
    "PENTIMENTO_MODM_MODE": {"serving": {"modmMode": "throughput"}},
    "PENTIMENTO_CASCADE": {"serving": {"cascade": ["sdxl-turbo", "sdxl"]}},
    "PENTIMENTO_CONFIDENCE_THRESHOLD": {"serving": {"confidenceThreshold": 0.25}},
    "PENTIMENTO_DISCRIMINATORS": {"serving": {"discriminators": ["a>b=/models/c"]}},
    "PENTIMENTO_THINNING": {"serving": {"thinning": "off"}},
    "PENTIMENTO_FEATURE_REUSE": {"serving": {"featureReuse": "asked"}},
    "PENTIMENTO_HANDOVER": {"serving": {"handover": "off"}},
    "PENTIMENTO_CONTROLNET_PIPELINING": {"serving": {"controlnetPipelining": "on"}},
    "PENTIMENTO_MODEL_SOURCES": {"serving": {"modelSources": [f"sdxl=s3://bucket/sdxl@sha256:{'0' * 64}"]}},
    "PENTIMENTO_REGISTRY_PUBLIC_KEYS": {"registry": {"publicKeys": "keys.pem"}},
    "PENTIMENTO_COMPONENT_DISK_MIB": {"componentCache": {"diskMib": 1000}},
    "PENTIMENTO_MODEL_ALIASES": {"serving": {"modelAliases": ["gpt-image-1=tiny-heavy"]}},
    "PENTIMENTO_SAFETY_CHECKS": {"serving": {"safetyChecks": ["prompt", "image"]}},
    "PENTIMENTO_PROMPT_CLASSIFIER": {"serving": {"promptClassifier": "texts"}},
    "PENTIMENTO_IMAGE_CLASSIFIER": {"serving": {"imageClassifier": "nsfw-detector"}},
    "PENTIMENTO_UNSAFE_LABELS": {"serving": {"unsafeLabels": ["porn", "gore"]}},
    "OTEL_EXPORTER_OTLP_ENDPOINT": TRACED,
    "OTEL_TRACES_SAMPLER_ARG": {"tracing": {"share": 0.0625}},
    "PENTIMENTO_PROFILE_RULE": {"serving": {"profileRule": "mean"}},
    "PENTIMENTO_EARNED_REUSE": {"cache": {"earnedReuse": False}},
    "PENTIMENTO_EVICTION": {"cache": {"eviction": "lru"}},
    "PENTIMENTO_CACHE_BIAS": {"cache": {"bias": -3}},
    "PENTIMENTO_SCRATCH_SHARE": {"cache": {"scratchShare": 0.125}},
    "PENTIMENTO_RENOISED_SHARE": {"cache": {"renoisedShare": 0.5}},
    "PENTIMENTO_MATCH_PREDICTOR": {"cache": {"matchPredictor": "always"}},
}
# The chart names the heavy model then. A composition cannot: its default model is the first by name.
NO_CASCADE = ("PENTIMENTO_FRONTDOOR_CASCADE", "")
# Volumes, ports, limits and images, which Kubernetes expresses differently.
OTHERS = re.compile(
    "PENTIMENTO_(ADMIN_LISTEN|C2PA_[A-Z]+|CREDENTIALS|MODELS|PROFILES|EMBEDDINGS|REGISTRY_KEYS|SECRETS|TAG|PUBLISH|PUBLISH_HTTP|HTTP_HOSTS|TENSORS_SIZE|GPU_SHARE"
    "|CPUS_[A-Z]+|MEMORY_[A-Z]+)"
)


def text_of(value: Any) -> str:
    """Return a value as a variable has it."""
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def given(environment: dict[str, Any]) -> dict[str, str]:
    return {key: text_of(value).strip(",") for key, value in environment.items() if not PLACES.search(key)}


def section_of(name: str) -> str:
    return SETTINGS["unet-worker" if name.startswith("unet-worker") else name][0]


def is_open(section: str, variable: str) -> bool:
    """Return whether the values may give a service's setting under `settings`."""
    definitions = json.loads((CHART / "values.schema.json").read_text())["$defs"]
    return variable.removeprefix(f"PENTIMENTO_{section.upper()}_").lower() in definitions[section]["properties"]


@pytest.mark.parametrize("file", FORMS)
def test_chart_environment_matches_composition(file: str, rendered: Rendering) -> None:
    chart, composition = environments(rendered(FORMS[file])), services(file)

    for name, environment in chart.items():
        section, expected = section_of(name), composition[name]["environment"]
        for key, value in given(expected).items():
            # A setting without a value has its default, which the compositions repeat.
            assert environment.get(key) == value or is_open(section, key) or (key, value) == NO_CASCADE, (name, key)
        named = {key.replace("_COMMON_", f"_{section.upper()}_") for key in environment}
        settings = {key for key in expected if key.startswith("PENTIMENTO_") and "_COMMON_" not in key}
        assert not [key for key in settings - named - {"PENTIMENTO_CONFIG"} if not is_open(section, key)], name


def test_no_variable_of_a_composition_has_another_in_its_default() -> None:
    """Compose 1.29 ends the outer one at the first brace."""
    files = [*ROOT.glob("docker-compose*.yml"), *(ROOT / "deploy").glob("*.yml")]

    assert {file.name for file in files if re.search(r"\$\{[^}]*\$\{", file.read_text())} == set()


def test_every_choice_of_the_compositions_is_a_value(rendered: Rendering) -> None:
    files = [ROOT / "docker-compose.yml", ROOT / "docker-compose.embedded.yml", ROOT / "deploy" / "services.yml"]
    named = {name for file in files for name in re.findall(r"\$\{((?:PENTIMENTO|OTEL)_\w+)", file.read_text())}
    given_by = re.findall(r"(PENTIMENTO_\w+): .*\$\{(PENTIMENTO_\w+)", files[-1].read_text())
    free = {
        variable
        for key, variable in given_by
        for section, _ in SETTINGS.values()
        if key.startswith(f"PENTIMENTO_{section.upper()}_") and is_open(section, key)
    }
    assert {name for name in named if not OTHERS.fullmatch(name)} - free == CHOICES.keys()
    plain = environments(rendered(EXTERNAL))

    changed = environments(rendered(EXTERNAL, *CHOICES.values()))

    for variable, values in CHOICES.items():
        (value,) = [value for group in values.values() for value in group.values()]
        differing = [
            new
            for name, environment in changed.items()
            for key, new in environment.items()
            if new != plain.get(name, {}).get(key)
        ]
        assert any(text_of(value) in new for new in differing), variable


def test_pods_mount_only_existing_secrets(tmp_path: Path, rendered: Rendering) -> None:
    make_secrets(tmp_path)
    composition = services("docker-compose.yml")
    mounted = {}
    for one in rendered({**CHOSEN, "secrets": RECEIPTS}):
        if one["kind"] in ("Deployment", "StatefulSet"):
            volumes = one["spec"]["template"]["spec"]["volumes"]
            sources = [
                source["secret"] for volume in volumes for source in volume.get("projected", {}).get("sources", ())
            ]
            name = one["metadata"]["labels"]["app.kubernetes.io/component"]
            mounted[name] = {item["key"] for source in sources for item in source["items"]}

    for name, keys in mounted.items():
        assert keys <= {file.name for file in tmp_path.iterdir()}, name
        # The ledger's password is a separate variable, by reference.
        expected = {secret if secret != "tokens" else "tokens.toml" for secret in composition[name]["secrets"]}
        assert keys == expected - {"ledger"}, name


def test_manifests_hold_no_secret(tmp_path: Path, rendered: Rendering) -> None:
    make_secrets(tmp_path)
    words = {word for file in tmp_path.iterdir() for word in re.findall(r"[\w-]{20,}", file.read_text())}
    manifests = rendered(EXTERNAL)
    passwords = [
        each
        for one in manifests
        if one["kind"] in ("Deployment", "Job")
        for each in one["spec"]["template"]["spec"]["containers"][0]["env"]
        if each["name"] == "PGPASSWORD"
    ]

    assert not [word for word in words if word in str(manifests)]
    assert "Secret" not in {one["kind"] for one in manifests}
    assert len(passwords) == 4
    assert all(
        each["valueFrom"]["secretKeyRef"] == {"name": "pentimento", "key": "postgres_password"} for each in passwords
    )
