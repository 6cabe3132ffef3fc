"""Test every docker-compose file without a container engine."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from pentimento.plugins import POLICY_NAMES
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.costs import read_costs
from pentimento.settings import load_settings
from services.controller.settings import ControllerSettings
from services.controller.uploads import MAX_LORA_BYTES
from services.edge.settings import EdgeSettings
from services.frontdoor.settings import FrontdoorSettings
from tests.compose.declared import EMBEDDED, REAL, ROOT, SETTINGS, declared_settings, read, services, settings_given

EVERY_SERVICE = [(file, name) for file in (EMBEDDED, REAL) for name in services(file)]
OWN_SERVICES = [(file, name) for file, name in EVERY_SERVICE if name in SETTINGS]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def test_environment_has_only_declared_and_all_required_settings(secrets: Path) -> None:
    for file, name in OWN_SERVICES:
        section, _ = SETTINGS[name]
        service, declared = services(file)[name], declared_settings(name)
        given = settings_given(service, section)
        assert given <= set(declared), (file, name)

        given |= settings_given(service, "common")
        if "PENTIMENTO_CONFIG" in service["environment"]:
            config = Path(read(file)["secrets"][Path(service["environment"]["PENTIMENTO_CONFIG"]).name]["file"])
            given |= set(tomllib.loads((secrets / config.name).read_text())[section])
        assert {key for key, one in declared.items() if one.required} <= given, (file, name)


def test_shared_settings_are_known_to_some_service() -> None:
    known = {key for name in SETTINGS for key in declared_settings(name)}

    for file in (EMBEDDED, REAL):
        shared = {key for service in services(file).values() for key in settings_given(service, "common")}
        assert shared <= known


def test_replicas_are_named_after_their_container() -> None:
    for file, name in OWN_SERVICES:
        if name != "controller":
            environment = services(file)[name]["environment"]
            instance_id = environment[f"PENTIMENTO_{SETTINGS[name][0]}_INSTANCE_ID".upper()]
            assert instance_id == f"{name}-{{hostname}}"
            assert not [key for key in environment if key.endswith("_ADVERTISE_ADDRESS")], (file, name)


def test_containers_restart_and_have_limits_health_checks_and_time_to_drain() -> None:
    for file, name in EVERY_SERVICE:
        service = services(file)[name]
        limits = service["deploy"]["resources"]["limits"]

        assert service["restart"] == "unless-stopped"
        assert float(limits["cpus"]) > 0
        assert int(limits["memory"][:-1]) * UNITS[limits["memory"][-1]] >= 2**27
        # The suite's own images have built-in health checks.
        assert name in SETTINGS or "healthcheck" in service
        if name in SETTINGS:
            drain_s = declared_settings(name)["drain_timeout_s"].default
            assert float(service["stop_grace_period"].removesuffix("s")) > drain_s, (file, name)


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_allocator_variable_selects_any_policy(file: str) -> None:
    given = services(file)["controller"]["environment"]
    environment = {key: str(value) for key, value in given.items() if key.startswith("PENTIMENTO_CONTROLLER_")}
    assert environment["PENTIMENTO_CONTROLLER_ALLOCATOR"] == "resident"

    for policy in {*POLICY_NAMES} - {"static-cascade"}:
        chosen = environment | {"PENTIMENTO_CONTROLLER_ALLOCATOR": policy}
        assert load_settings(ControllerSettings, "controller", [], chosen).policy().name == policy
    assert environment["PENTIMENTO_CONTROLLER_MODM_MODE"] == "quality"


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_frontdoor_and_edge_alone_are_published_to_this_host(file: str) -> None:
    published = {name: service["ports"] for name, service in services(file).items() if "ports" in service}

    assert set(published) == {"frontdoor", "edge"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    # Other containers call the edge by its service name.
    hosts = services(file)["edge"]["environment"]["PENTIMENTO_EDGE_ALLOWED_HOSTS"]
    assert hosts == "127.0.0.1,localhost,edge"


@pytest.mark.parametrize(
    "read_files", [lambda paths: read_profiles(paths).profiles, read_costs], ids=["profiles", "costs"]
)
def test_images_have_profiles_of_tiny_models_and_own_folder(
    read_files: Callable[[list[Path]], Sequence[object]],
) -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    copied = re.search(r"COPY ((?:\S+ )+)/usr/share/pentimento/profiles/", dockerfile)
    assert copied is not None
    environments = [one.get("environment", {}) for file in (EMBEDDED, REAL) for one in services(file).values()]
    named = {name: value for one in environments for name, value in one.items() if name.endswith("_PROFILES")}

    assert {name.split("_")[1] for name in named} == {"FRONTDOOR", "UNET", "VECTORDB"}
    assert set(named.values()) == {"/usr/share/pentimento/profiles,/profiles"}
    patterns = copied[1].split()
    assert len(read_files(sorted(file for pattern in patterns for file in ROOT.glob(pattern)))) > 1
    assert {f"!{pattern}" for pattern in patterns} <= {*(ROOT / ".dockerignore").read_text().splitlines()}


def test_embedded_form_has_no_third_party_image() -> None:
    assert set(services(EMBEDDED)) == set(SETTINGS)


def test_third_party_images_are_pinned_by_tag() -> None:
    images = [service["image"] for name, service in services(REAL).items() if name not in SETTINGS]

    assert len(images) == 3
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", image) for image in images)


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_controller_memory_fits_largest_lora(file: str) -> None:
    limit = services(file)["controller"]["deploy"]["resources"]["limits"]["memory"]

    assert int(limit[:-1]) * UNITS[limit[-1]] >= MAX_LORA_BYTES + 256 * 2**20


def test_cells_of_the_composition_start_with_own_stores_and_know_each_other(secrets: Path) -> None:
    overlay, base = services("docker-compose.cells.yml"), services(REAL)
    mounted = secrets / "mounted"
    mounted.mkdir()
    for file in ("docker-compose.cells.yml", REAL):
        for name, secret in read(file)["secrets"].items():
            (mounted / name).write_text((secrets / Path(secret["file"]).name).read_text())
    loaded = {}
    for name, section in (("frontdoor", "frontdoor"), ("frontdoor-b", "frontdoor"), ("edge", "edge")):
        given = base.get(name, {"environment": {}})["environment"] | overlay[name]["environment"]
        given = {key: str(value or "").replace("/run/secrets", str(mounted)) for key, value in given.items()}
        kinds = {"frontdoor": FrontdoorSettings, "edge": EdgeSettings}
        loaded[name] = load_settings(kinds[section], section, [], given)
    first, second, edge = loaded.values()
    assert first.read_cells() == second.read_cells() == edge.read_cells()
    assert (first.frontdoor_id, second.frontdoor_id) == ("frontdoor", "b")
    assert [one.ledger_url.partition("@")[2] for one in (first, second)] == [
        "ledger:5432/pentimento",
        "ledger-b:5432/pentimento",
    ]
    assert second.tenants_url == first.ledger_url
    assert {one.name for one in fields(first) if getattr(first, one.name) != getattr(second, one.name)} == {
        *("frontdoor_id", "ledger_url", "tenants_url", "objects_url")
    }
    assert [url.partition("?")[0] for url in edge.files_url] == [
        one.objects_url.partition("?")[0] for one in (first, second)
    ]
    assert not overlay["frontdoor-b"]["ports"]


def test_profiles_of_images_have_different_names() -> None:
    line = next(
        one for one in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if one.startswith("COPY zoo/selector")
    )

    # All profiles share one folder: a file of the same name would replace another.
    names = [path.name for pattern in line.split()[1:-1] for path in ROOT.glob(pattern)]
    assert len(names) > 20
    assert len(set(names)) == len(names)
