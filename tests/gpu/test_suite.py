"""Run the suite on a GPU: a process for each service, the tiny models, and a ControlNet in another process that sends
its residuals in the device's memory."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pentimento.domain.image_request import AskedControlNet, AskedLora, CacheMode, ImageRequest
from pentimento.sdk import Client
from pentimento.supervisor.local import local_suite

pytestmark = pytest.mark.gpu

PROMPT = "a large red circle on a white background"
EDGES, NEON = "tiny-controlnet-edges", "tiny-lora-neon"


def request(**fields: object) -> ImageRequest:
    asked = {"num_inference_steps": 20, "cache": CacheMode.OFF, "seed": 3}
    return ImageRequest(PROMPT, **{**asked, **fields})  # type: ignore[arg-type]


@contextmanager
def running_suite(tmp_path: Path, *, shares: bool) -> Iterator[tuple[Client, str]]:
    """Yield a client of a suite, and the metrics address of its ControlNet service."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{taken.getsockname()[1]}"
    config = tmp_path / f"{shares}.toml"
    share = f"share_device_memory = {str(shares).lower()}"
    config.write_text(f'[unet_worker]\n{share}\n[controlnet_svc]\n{share}\nmetrics_listen = "{metrics}"\n')
    flags = ["--device", "cuda", "--controlnets", "tiny", "--adapters", "tiny", "--config", str(config)]
    with local_suite(flags) as suite, Client(suite.endpoint.public) as client:
        yield client, metrics


def sent_bytes(metrics: str, transport: str) -> float:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'pentimento_tensor_sent_bytes_total{{transport="{transport}"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def test_images_are_equal_by_device_and_shared_memory(tmp_path: Path) -> None:
    images = {}
    for shares, transport in ((True, "cuda_ipc"), (False, "shared_memory")):
        with running_suite(tmp_path, shares=shares) as (client, metrics):
            outline = client.generate(request()).data
            controlled = request(controlnets=(AskedControlNet(EDGES, outline),))
            images[shares] = [outline, *(client.generate(controlled).data for _ in range(2))]
            assert sent_bytes(metrics, transport) > 1e6

    assert images[True] == images[False]
    assert images[True][1] == images[True][2] != images[True][0]


def test_lora_changes_only_its_own_image_and_hit_resumes(tmp_path: Path) -> None:
    with running_suite(tmp_path, shares=False) as (client, _):
        before = client.generate(request()).data
        neon = client.generate(request(loras=(AskedLora(NEON),))).data
        after = client.generate(request()).data
        # An entry of the first image is committed a moment later.
        asked = (request(cache=CacheMode.READ_WRITE, num_inference_steps=50, seed=seed) for seed in range(4, 40))
        saved = next((found for one in asked if (found := client.generate(one).provenance.steps_saved)), 0)

    assert before == after != neon
    assert saved > 0
