"""docker-compose.embedded.yml, for real: images built, containers up, a picture through the published port."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.compose.composition import Composition, compose_command, free_port

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

PENTIMENTO = Path(sys.executable).parent / "pentimento"
SERVICES = ("controller", "embedder", "vectordb-gateway", "unet-worker-heavy", "unet-worker-light", "frontdoor")
WORKERS = ("unet-worker-heavy", "unet-worker-light")


@pytest.fixture(scope="module")
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def composition(address: str) -> Iterator[Composition]:
    command = compose_command()
    if command is None:
        pytest.skip("no container engine with Compose runs here")
    composition = Composition(
        command, ["docker-compose.embedded.yml"], f"pentimento-test-{os.getpid()}", PENTIMENTO_PUBLISH=address
    )
    try:
        composition.up()
        wait_until_healthy(composition, "frontdoor")
        yield composition
    finally:
        composition.down()


def wait_until_healthy(composition: Composition, service: str) -> None:
    """Follows the engine's events since the container's last start; an unhealthy one is reported with the logs."""
    container = composition.container(service)
    events = ["docker", "events", "--since", container["State"]["StartedAt"], "--format", "{{.Status}}"]
    filters = ["--filter", f"container={container['Id']}", "--filter", "event=health_status"]
    with subprocess.Popen([*events, *filters], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            status = next(line.strip() for line in following.stdout)
        finally:
            following.kill()
    assert status == "health_status: healthy", composition.logs()


def generate(address: str, picture: Path, *options: str) -> str:
    command = [
        PENTIMENTO,
        "generate",
        "a red circle on a white background",
        "--address",
        address,
        "-o",
        picture,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generate_paints_a_picture_through_the_published_port(
    composition: Composition, address: str, tmp_path: Path
) -> None:
    generate(address, tmp_path / "picture.png", "--seed", "7")

    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.format == "PNG"
        assert picture.size == (32, 32)


def test_both_models_are_served(composition: Composition, address: str, tmp_path: Path) -> None:
    for model in ("tiny-heavy", "tiny-light"):
        generate(address, tmp_path / f"{model}.png", "--model", model)

    assert sorted(path.stem for path in tmp_path.iterdir()) == ["tiny-heavy", "tiny-light"]


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_runs_unprivileged_on_a_read_only_root_within_its_limits(
    composition: Composition, service: str
) -> None:
    container = composition.container(service)

    assert container["Config"]["User"] == "pentimento"
    assert container["HostConfig"]["ReadonlyRootfs"]
    assert container["HostConfig"]["CapDrop"] == ["ALL"]
    assert container["HostConfig"]["Memory"] > 0
    assert container["HostConfig"]["NanoCpus"] > 0
    assert container["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"


def test_only_the_frontdoor_is_published(composition: Composition) -> None:
    published = [name for name in SERVICES if any(composition.container(name)["NetworkSettings"]["Ports"].values())]

    assert published == ["frontdoor"]


def test_workers_share_one_memory_volume(composition: Composition) -> None:
    volumes = {
        mount["Name"]
        for worker in WORKERS
        for mount in composition.container(worker)["Mounts"]
        if mount["Destination"] == "/dev/shm/pentimento"
    }
    composition.run("exec", "-T", WORKERS[0], "python", "-c", "open('/dev/shm/pentimento/seen', 'w').write('yes')")

    seen = composition.run("exec", "-T", WORKERS[1], "cat", "/dev/shm/pentimento/seen")

    assert len(volumes) == 1
    assert seen == "yes"


def test_images_of_the_control_plane_hold_no_torch(composition: Composition) -> None:
    for service in ("controller", "vectordb-gateway", "frontdoor"):
        found = composition.run(
            "exec", "-T", service, "python", "-c", "import importlib.util as u; print(u.find_spec('torch'))"
        )
        assert found.strip() == "None", service


def test_a_restart_drains_and_keeps_what_was_accepted(composition: Composition, address: str, tmp_path: Path) -> None:
    """The same key finds the same picture after the whole suite was stopped and started: the journal is in a volume."""
    key = ("--idempotency-key", "before-the-restart", "--seed", "11")
    generate(address, tmp_path / "before.png", *key)

    composition.run("stop", limit_s=180)
    exits = {service: composition.container(service)["State"]["ExitCode"] for service in SERVICES}
    composition.run("up", "--detach", "--no-build", limit_s=240)
    wait_until_healthy(composition, "frontdoor")
    generate(address, tmp_path / "after.png", *key)

    assert exits == dict.fromkeys(SERVICES, 0)
    with Image.open(tmp_path / "before.png") as before, Image.open(tmp_path / "after.png") as after:
        assert before.tobytes() == after.tobytes()
