"""Test object stores, volumes and devices of the compositions."""

import pytest

from deploy.requirements import requirements_of
from tests.compose.declared import (
    EMBEDDED,
    REAL,
    SETTINGS,
    declared_settings,
    directories_of_images,
    object_store,
    read,
    services,
    settings_given,
)


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_edge_serves_images_of_the_frontdoors_store(file: str) -> None:
    found = services(file)
    url, volumes = object_store(found["frontdoor"])
    served = found["edge"]["environment"]["PENTIMENTO_EDGE_FILES_URL"]

    assert served.partition("?")[0] == url.partition("?")[0]
    assert url.startswith("file:") or "addresses=edge" in url
    mounted = {volume.split(":")[0]: volume.split(":")[-1] for volume in found["edge"].get("volumes", ())}
    assert {name: mounted[name] for name in volumes} == dict.fromkeys(volumes, "ro")


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_workers_and_frontdoor_share_controllers_object_store(file: str) -> None:
    found = services(file)
    others = [name for name in SETTINGS if name.startswith("unet-worker")] + ["frontdoor"]

    url, volumes = object_store(found["controller"])

    assert bool(volumes) == url.startswith("file:")
    for name in others:
        assert object_store(found[name]) == (url, volumes)
    assert "PENTIMENTO_CONTROLLER_LEDGER_URL" in found["controller"]["environment"]


def test_real_controller_has_object_store_credentials() -> None:
    controller = services(REAL)["controller"]

    assert "stores" in controller["networks"]
    assert "s3_credentials" in controller["secrets"]
    assert any(requirement.startswith("boto3") for requirement in requirements_of(["controller"]))


@pytest.mark.parametrize("file", [EMBEDDED, REAL])
def test_workers_keep_uploaded_loras_in_writable_volume(file: str) -> None:
    owned = directories_of_images()
    for name in ("unet-worker-heavy", "unet-worker-light"):
        service = services(file)[name]
        directory = service["environment"]["PENTIMENTO_UNET_WORKER_COMPONENT_CACHE_DIR"]
        volumes = {target: volume for volume, target, *_ in (one.split(":") for one in service["volumes"])}

        assert volumes[directory] in read(file)["volumes"]
        assert directory in owned


def test_gpu_form_gives_all_gpus_and_claims_volume() -> None:
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


def test_gpu_form_keeps_triton_kernels_in_executable_tmpfs() -> None:
    services_with_kernels = [one for one in read("docker-compose.gpu.yml")["services"].values() if "tmpfs" in one]

    assert len(services_with_kernels) == 3
    for worker in services_with_kernels:
        mounts = dict(mount.split(":") for mount in worker["tmpfs"])

        assert "exec" in mounts[worker["environment"]["TRITON_CACHE_DIR"]].split(",")
