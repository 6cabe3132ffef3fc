"""What every docker-compose file must hold to, shown without an engine."""

import errno
import importlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from deploy.make_secrets import main as make_secrets
from deploy.requirements import requirements_of
from pentimento.domain.errors import Unauthenticated
from pentimento.domain.identity import Role
from pentimento.plugins import POLICY_NAMES
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.costs import read_costs
from pentimento.rpc.tokens import TokenFile
from pentimento.settings import load_settings
from pentimento.settings.declaration import by_name
from services.controller.settings import ControllerSettings
from services.edge.settings import EdgeSettings
from services.frontdoor.settings import FrontdoorSettings
from tests.compose.declared import ROOT, Service, read, services

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
EVERY_SERVICE = [(file, name) for file in (EMBEDDED, REAL) for name in services(file)]
OWN_SERVICES = [(file, name) for file, name in EVERY_SERVICE if name in SETTINGS]
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    make_secrets(tmp_path)
    return tmp_path


def declared_settings(name: str) -> dict[str, Any]:
    module, cls = SETTINGS[name]
    return dict(by_name(getattr(importlib.import_module(f"services.{module}.settings"), cls)))


def settings_given(service: Service, section: str) -> set[str]:
    """Names of the settings that the environment gives to a service's own section."""
    prefix = f"PENTIMENTO_{section}_".upper()
    return {key.removeprefix(prefix).lower() for key in service.get("environment", {}) if key.startswith(prefix)}


def test_environment_gives_settings_that_exist_and_must_be_given(secrets: Path) -> None:
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
        # Ours come with the image.
        assert name in SETTINGS or "healthcheck" in service
        if name in SETTINGS:
            drain_s = declared_settings(name)["drain_timeout_s"].default
            assert float(service["stop_grace_period"].removesuffix("s")) > drain_s, (file, name)


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_controller_plans_by_any_policy_that_one_variable_names(file: str) -> None:
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
    # Other containers ask the edge by its name.
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


def test_the_embedded_form_has_no_image_of_third_parties() -> None:
    assert set(services(EMBEDDED)) == set(SETTINGS)


def test_images_of_third_parties_are_pinned_by_tag() -> None:
    images = [service["image"] for name, service in services(REAL).items() if name not in SETTINGS]

    assert len(images) == 3
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", image) for image in images)


def test_the_edge_has_no_token_that_a_caller_could_borrow() -> None:
    edge = services(REAL)["edge"]

    assert edge["secrets"] == ["signing_key", "s3_reader_credentials"]
    assert not [name for name in edge["environment"] if "TOKEN" in name]


def test_in_the_real_form_every_other_service_asks_for_a_token_and_shows_one() -> None:
    for name in set(SETTINGS) - {"edge"}:
        service = services(REAL)[name]

        assert {"tokens", "service_token"} <= set(service["secrets"])
        assert service["environment"]["PENTIMENTO_COMMON_TOKEN_FILE"] == "/run/secrets/tokens"
        assert service["environment"]["PENTIMENTO_COMMON_SERVICE_TOKEN_FILE"] == "/run/secrets/service_token"


def test_in_the_real_form_gateway_and_workers_share_the_key_of_grants_and_nobody_else_has_it() -> None:
    holders = {name for name, service in services(REAL).items() if "grant_key" in service.get("secrets", ())}

    assert holders == {"vectordb-gateway", "unet-worker-heavy", "unet-worker-light"}
    for name in holders:
        assert services(REAL)[name]["environment"]["PENTIMENTO_COMMON_GRANT_KEY_FILE"] == "/run/secrets/grant_key"


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_frontdoor_and_edge_share_the_key_of_addresses_and_nobody_else_has_it(file: str) -> None:
    found = services(file)
    holders = {
        name: service["environment"][key]
        for name, service in found.items()
        for key in service.get("environment", {})
        if key.endswith("_SIGNING_KEY_FILE")
    }

    assert set(holders) == {"frontdoor", "edge"}
    assert len(set(holders.values())) == 1
    reaching = {name for name, service in found.items() if "signing_key" in service.get("secrets", ())}
    assert reaching == (set(holders) if file == REAL else set())


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_edge_serves_images_of_the_frontdoors_store(file: str) -> None:
    found = services(file)
    url, volumes = object_store(found["frontdoor"])
    served = found["edge"]["environment"]["PENTIMENTO_EDGE_FILES_URL"]

    assert served.partition("?")[0] == url.partition("?")[0]
    assert url.startswith("file:") or "addresses=edge" in url
    mounted = {volume.split(":")[0]: volume.split(":")[-1] for volume in found["edge"].get("volumes", ())}
    assert {name: mounted[name] for name in volumes} == dict.fromkeys(volumes, "ro")


def test_in_the_embedded_form_the_frontdoor_makes_the_key_of_addresses_in_a_volume_that_it_may_write_to() -> None:
    frontdoor, edge = services(EMBEDDED)["frontdoor"], services(EMBEDDED)["edge"]
    folder = str(Path(frontdoor["environment"]["PENTIMENTO_FRONTDOOR_SIGNING_KEY_FILE"]).parent)

    assert frontdoor["environment"]["PENTIMENTO_FRONTDOOR_MAKE_SIGNING_KEY"] == "true"
    assert f"keys:{folder}" in frontdoor["volumes"] and f"keys:{folder}:ro" in edge["volumes"]
    assert "keys" in read(EMBEDDED)["volumes"] and folder in directories_of_images()


def test_in_the_real_form_the_edge_may_only_read_the_object_store(secrets: Path) -> None:
    identities = json.loads((secrets / "s3_identities.json").read_text())["identities"]
    actions = {one["credentials"][0]["accessKey"]: one["actions"] for one in identities}
    profile = (secrets / "s3_reader_credentials").read_text()

    (shown,) = [key for key in actions if key in profile]
    assert actions[shown] == ["Read:pentimento"]
    assert services(REAL)["edge"]["environment"]["AWS_SHARED_CREDENTIALS_FILE"] == "/run/secrets/s3_reader_credentials"
    assert "s3_credentials" not in services(REAL)["edge"]["secrets"]
    assert any(requirement.startswith("boto3") for requirement in requirements_of(["edge"]))


def test_secrets_of_before_get_what_is_new_and_keep_what_they_had(secrets: Path) -> None:
    identities = json.loads((secrets / "s3_identities.json").read_text())["identities"]
    (secrets / "s3_identities.json").write_text(json.dumps({"identities": identities[:1]}))
    (secrets / "s3_reader_credentials").unlink()

    make_secrets(secrets)

    now = json.loads((secrets / "s3_identities.json").read_text())["identities"]
    assert (now[0], [one["name"] for one in now]) == (identities[0], ["pentimento", "edge"])
    assert now[1]["credentials"][0]["secretKey"] in (secrets / "s3_reader_credentials").read_text()


def object_store(service: Service) -> tuple[str, set[str]]:
    """Where its objects are, and the volumes that hold them where they are files."""
    environment = service["environment"]
    url = next(value for key, value in environment.items() if key.endswith("_OBJECTS_URL"))
    mounted = (volume.split(":") for volume in service.get("volumes", ()))
    return url, {name for name, target, *_ in mounted if url == f"file://{target}"}


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_what_the_controller_is_sent_lies_where_workers_and_the_frontdoor_find_it(file: str) -> None:
    found = services(file)
    others = [name for name in SETTINGS if name.startswith("unet-worker")] + ["frontdoor"]

    url, volumes = object_store(found["controller"])

    assert bool(volumes) == url.startswith("file:")
    for name in others:
        assert object_store(found[name]) == (url, volumes)
    assert "PENTIMENTO_CONTROLLER_LEDGER_URL" in found["controller"]["environment"]


def test_in_the_real_form_the_controller_reaches_the_object_store_with_its_credentials() -> None:
    controller = services(REAL)["controller"]

    assert "stores" in controller["networks"]
    assert "s3_credentials" in controller["secrets"]
    assert any(requirement.startswith("boto3") for requirement in requirements_of(["controller"]))


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_the_controller_has_the_memory_for_the_largest_lora_that_it_takes(file: str) -> None:
    limit = services(file)["controller"]["deploy"]["resources"]["limits"]["memory"]
    largest_bytes = declared_settings("controller")["max_lora_mib"].default * 2**20

    assert int(limit[:-1]) * UNITS[limit[-1]] >= largest_bytes + 256 * 2**20


def directories_of_images() -> set[str]:
    """Return the directories that a process may write to where a named volume is mounted over them."""
    made = re.search(r"for directory in (.*?); do install -d -o pentimento", (ROOT / "deploy/Dockerfile").read_text())
    assert made is not None
    return {f"/var/lib/pentimento/{name}" for name in made[1].split()}


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_workers_keep_uploaded_loras_in_a_volume_that_they_may_write_to(file: str) -> None:
    owned = directories_of_images()
    for name in ("unet-worker-heavy", "unet-worker-light"):
        service = services(file)[name]
        directory = service["environment"]["PENTIMENTO_UNET_WORKER_COMPONENT_CACHE_DIR"]
        volumes = {target: volume for volume, target, *_ in (one.split(":") for one in service["volumes"])}

        assert volumes[directory] in read(file)["volumes"]
        assert directory in owned


def test_the_gpu_form_shows_every_process_all_gpus_and_the_volume_of_claims() -> None:
    found = read("docker-compose.gpu.yml")["services"]

    with_networks = {"controlnet-svc", "discriminator", "embedder", "image-embedder"}
    assert set(found) == {name for name in SETTINGS if name.startswith("unet-worker")} | with_networks
    for name, service in found.items():
        section, _ = SETTINGS[name]
        folder = service["environment"][f"PENTIMENTO_{section}_DEVICE_CLAIMS_DIR".upper()]
        (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert settings_given(service, section) <= set(declared_settings(name))
        assert (devices["driver"], devices["count"]) == ("nvidia", "all")
        assert folder in directories_of_images()
        assert all(f"devices:{folder}" in services(file)[name]["volumes"] for file in (EMBEDDED, REAL))


def test_the_gpu_form_keeps_what_triton_compiles_where_it_may_be_loaded_from() -> None:
    services_with_kernels = [one for one in read("docker-compose.gpu.yml")["services"].values() if "tmpfs" in one]

    assert len(services_with_kernels) == 3
    for worker in services_with_kernels:
        mounts = dict(mount.split(":") for mount in worker["tmpfs"])

        assert "exec" in mounts[worker["environment"]["TRITON_CACHE_DIR"]].split(",")


def test_secrets_are_made_once_and_are_those_the_composition_mounts(secrets: Path) -> None:
    first = {path.name: path.read_text() for path in secrets.iterdir()}
    make_secrets(secrets)

    files = [read(file)["secrets"] for file in (REAL, "docker-compose.cells.yml")]
    mounted = {Path(secret["file"]).name for given in files for secret in given.values()}
    assert {path.name: path.read_text() for path in secrets.iterdir()} == first
    assert set(first) == mounted | {"user_token", "admin_token"}


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


def test_full_disk_leaves_no_empty_secret(tmp_path: Path) -> None:
    write = Path.write_text
    for written in range(15):
        folder, left = tmp_path / str(written), iter(range(written))
        folder.mkdir()

        def write_while_there_is_room(path: Path, text: str, left: Iterator[int] = left) -> int:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, text)

        with pytest.MonkeyPatch.context() as full:
            full.setattr(Path, "write_text", write_while_there_is_room)
            with pytest.raises(OSError, match="No space left"):
                make_secrets(folder)
        make_secrets(folder)

        assert [path.name for path in folder.iterdir() if not path.read_text()] == []
        password = (folder / "postgres_password").read_text()
        assert f":{password}@" in (folder / "ledger.toml").read_text()
        identities = json.loads((folder / "s3_identities.json").read_text())["identities"]
        assert [one["name"] for one in identities] == ["pentimento", "edge"]


def assert_tokens_are_known(secrets: Path) -> None:
    tokens = TokenFile(secrets / "tokens.toml")
    for role in (Role.USER, Role.SERVICE, Role.ADMIN):
        caller = tokens.identify(f"Bearer {(secrets / f'{role.value}_token').read_text()}")
        assert caller is not None
        assert caller.roles == frozenset({role})


def test_lost_secrets_are_made_again_and_fit(secrets: Path) -> None:
    assert_tokens_are_known(secrets)
    for lost in ("user_token", "admin_token", "service_token", "tokens.toml"):
        (secrets / lost).unlink()
        make_secrets(secrets)
        assert_tokens_are_known(secrets)
    # In two files each: the other one has it.
    for lost in ("postgres_password", "ledger.toml", "vectors_key", "vectors_settings.yaml"):
        first = (secrets / lost).read_text()
        (secrets / lost).unlink()
        make_secrets(secrets)
        assert (secrets / lost).read_text() == first


def test_a_token_that_was_revoked_is_not_let_in_again(secrets: Path) -> None:
    known = secrets / "tokens.toml"
    entries = known.read_text().split("\n\n")
    known.write_text("\n\n".join(entry for entry in entries if "demo" not in entry))
    make_secrets(secrets)

    with pytest.raises(Unauthenticated):
        TokenFile(known).identify(f"Bearer {(secrets / 'user_token').read_text()}")


def test_profiles_of_the_images_have_different_names() -> None:
    line = next(
        one for one in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if one.startswith("COPY zoo/selector")
    )

    # One folder takes all of them: a file of the same name would replace another.
    names = [path.name for pattern in line.split()[1:-1] for path in ROOT.glob(pattern)]
    assert len(names) > 20
    assert len(set(names)) == len(names)
