"""Run docker-compose.embedded.yml: images built, containers started, requests through the published port."""

import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from pentimento.supervisor.models import WEIGHTS
from tests.compose.composition import Composition, outline, running
from tests.support.tiny_models import size_px

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

SERVICES = (
    "controller",
    "embedder",
    "vectordb-gateway",
    "unet-worker-heavy",
    "unet-worker-light",
    "controlnet-svc",
    "frontdoor",
    "edge",
    "discriminator",
)
WORKERS = ("unet-worker-heavy", "unet-worker-light")
# Each takes a variable.
MECHANISMS = {
    "PENTIMENTO_CASCADE": "tiny-light,tiny-heavy",
    "PENTIMENTO_THINNING": "always",
}
EDGES, NEON = "tiny-controlnet-edges", "tiny-lora-neon"


@pytest.fixture(scope="module")
def suite() -> Iterator[Composition]:
    with running("docker-compose.embedded.yml", **MECHANISMS) as composition:
        yield composition


@pytest.mark.parametrize("model", ["tiny-heavy", "tiny-light"])
def test_generate_through_published_port_saves_an_image(suite: Composition, model: str, tmp_path: Path) -> None:
    suite.generate(tmp_path / "image.png", "--model", model)

    with Image.open(tmp_path / "image.png") as image:
        assert image.format == "PNG"
        assert image.size == size_px(model)


def test_request_without_model_uses_the_cascade(suite: Composition, tmp_path: Path) -> None:
    # A slow machine may miss the time for a prediction at first.
    seeds = (str(seed) for seed in range(3, 30))
    answers = (json.loads(suite.generate(tmp_path / "image.png", "--json", "--seed", seed)) for seed in seeds)
    answer = next(one for one in answers if not any("foresight skipped" in note for note in one["notes"]))

    assert [stage["model"] for stage in answer["route"]["stages"]] == ["tiny-light", "tiny-heavy"]
    assert not any("unscored" in note.lower() for note in answer["notes"])
    # The cascade's default discriminator may predict that a prompt needs no score, or no light image.
    sure = [note for note in answer["notes"] if "the prompt predicts" in note]
    scored = answer["spec"]["model"] == "tiny-light" and not sure
    assert (answer["discriminator_confidence"] is not None) == scored
    assert answer["route"]["stages"][0]["confidence_threshold"] == pytest.approx(own_threshold())


def own_threshold() -> float:
    """Return the threshold that the default discriminator recommends."""
    return float(json.loads((WEIGHTS / "tiny-router" / "prompt_head.json").read_text())["threshold"])


def test_generate_leaves_out_steps_by_the_profiles_of_the_image(suite: Composition, tmp_path: Path) -> None:
    # From noise, feature reuse saves more than thinning.
    options = ("--model", "tiny-heavy", "--seed", "4", "--no-cache", "--no-feature-reuse")
    answer = json.loads(suite.generate(tmp_path / "image.png", "--json", *options))

    assert answer["route"]["thinned_steps"]


def test_image_url_over_http_returns_the_image(suite: Composition) -> None:
    with Image.open(io.BytesIO(suite.image_by_url())) as image:
        assert image.format == "PNG"


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_runs_unprivileged_on_a_read_only_root_within_its_limits(
    suite: Composition, service: str
) -> None:
    container = suite.container(service)

    assert container["Config"]["User"] == "pentimento"
    assert container["HostConfig"]["ReadonlyRootfs"]
    assert container["HostConfig"]["CapDrop"] == ["ALL"]
    assert container["HostConfig"]["Memory"] > 0
    assert container["HostConfig"]["NanoCpus"] > 0
    assert container["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"


def test_only_frontdoor_and_edge_are_published(suite: Composition) -> None:
    published = [name for name in SERVICES if any(suite.container(name)["NetworkSettings"]["Ports"].values())]

    assert sorted(published) == ["edge", "frontdoor"]


def test_workers_share_one_memory_volume(suite: Composition) -> None:
    suite.python(WORKERS[0], "open('/dev/shm/pentimento/left-here', 'w').write('by the other')")

    assert suite.python(WORKERS[1], "print(open('/dev/shm/pentimento/left-here').read())") == "by the other"


def test_controlnet_with_lora_sends_residuals_through_shared_volume(suite: Composition, tmp_path: Path) -> None:
    suite.await_adapters(EDGES, NEON)
    asked = ("--model", "tiny-heavy", "--seed", "5", "--lora", NEON)
    suite.generate(tmp_path / "plain.png", *asked)

    control = f"{EDGES}:{outline(tmp_path / 'edges.png')}"
    answer = json.loads(suite.generate(tmp_path / "controlled.png", *asked, "--controlnet", control, "--json"))

    assert [lora["name"] for lora in answer["spec"]["loras"]] == [NEON]
    assert [controlnet["name"] for controlnet in answer["spec"]["controlnets"]] == [EDGES]
    with Image.open(tmp_path / "plain.png") as plain, Image.open(tmp_path / "controlled.png") as controlled:
        assert plain.tobytes() != controlled.tobytes()
    sent_bytes = suite.metrics("controlnet-svc", "pentimento_tensor_sent_bytes_total")
    assert sent_bytes['{transport="shared_memory"}'] > 0
    for service in ("controlnet-svc", "unet-worker-heavy"):
        assert sum(suite.metrics(service, "pentimento_tensor_fallbacks_total").values()) == 0


@pytest.mark.parametrize("service", ["controller", "vectordb-gateway", "frontdoor"])
def test_images_of_the_control_plane_hold_no_torch(suite: Composition, service: str) -> None:
    assert suite.python(service, "import importlib.util as u; print(u.find_spec('torch'))") == "None"


def test_scaled_service_has_replicas_that_each_work(suite: Composition, tmp_path: Path) -> None:
    suite.start(unet_worker_heavy=3, embedder=2, discriminator=2, controlnet_svc=2)
    wanted = {"unet-worker-heavy": 3, "embedder": 2, "discriminator": 2, "controlnet-svc": 2}
    hostnames = {
        f"{service}-{container['Config']['Hostname']}" for service in wanted for container in suite.containers(service)
    }
    heavy = {name for name in hostnames if name.startswith("unet-worker-heavy")}

    while not suite.replicas().keys() >= hostnames:
        time.sleep(0.5)
    with ThreadPoolExecutor(6) as callers:
        while not all(suite.replicas().get(name) for name in heavy):
            seeds = [("--model", "tiny-heavy", "--seed", str(seed)) for seed in range(6)]
            list(callers.map(lambda options: suite.generate(tmp_path / f"{options[-1]}.png", *options), seeds))

    assert {service: len(suite.containers(service)) for service in wanted} == wanted
    assert len(hostnames) == sum(wanted.values())


def test_claims_replicas_share_devices_through_the_volume(suite: Composition) -> None:
    """Without GPUs, each container claims a device of a list, and keeps its claim for a while."""
    claim = (
        "from pathlib import Path; from pentimento.devices.claims import claim_device; import sys, time;"
        "print(claim_device(Path('/var/lib/pentimento/devices'), 'test', ('GPU-a', 'GPU-b'), 1).device, flush=True);"
    )
    holding = f"{claim} time.sleep(600)"

    with suite.started_python(WORKERS[0], holding) as first, suite.started_python("controlnet-svc", holding) as second:
        assert {first.readline().strip(), second.readline().strip()} == {"GPU-a", "GPU-b"}
        with pytest.raises(AssertionError, match="no GPU is free"):
            suite.python(WORKERS[1], claim)


def test_stop_drains_and_restart_finds_the_image(suite: Composition, tmp_path: Path) -> None:
    """Journal and images outlive the processes, so the same idempotency key finds the same image."""
    request = ("--idempotency-key", "before-the-restart", "--seed", "11")
    suite.generate(tmp_path / "before.png", *request)

    suite.run("stop", limit_s=240)
    exit_codes = {one["Name"]: one["State"]["ExitCode"] for service in SERVICES for one in suite.containers(service)}
    suite.start()
    suite.generate(tmp_path / "after.png", *request)

    assert exit_codes == dict.fromkeys(exit_codes, 0)
    with Image.open(tmp_path / "before.png") as before, Image.open(tmp_path / "after.png") as after:
        assert before.tobytes() == after.tobytes()
