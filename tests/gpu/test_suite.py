"""The suite on a GPU: every service a process of its own, the tiny models, a ControlNet in another process that hands
its residuals over in the device's memory."""

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
def painted_with(tmp_path: Path, *, shares: bool) -> Iterator[tuple[Client, str]]:
    """A client of a suite, and where its ControlNet service tells its metrics."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{taken.getsockname()[1]}"
    config = tmp_path / f"{shares}.toml"
    share = f"share_device_memory = {str(shares).lower()}"
    config.write_text(f'[unet_worker]\n{share}\n[controlnet_svc]\n{share}\nmetrics_listen = "{metrics}"\n')
    flags = ["--device", "cuda", "--controlnets", "tiny", "--loras", "tiny", "--config", str(config)]
    with local_suite(flags) as suite, Client(suite.endpoint.public) as client:
        yield client, metrics


def sent_bytes(metrics: str, transport: str) -> float:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'pentimento_tensor_sent_bytes_total{{transport="{transport}"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def test_pictures_are_the_same_by_whatever_memory_their_residuals_come(tmp_path: Path) -> None:
    pictures = {}
    for shares, transport in ((True, "cuda_ipc"), (False, "shared_memory")):
        with painted_with(tmp_path, shares=shares) as (client, metrics):
            outline = client.generate(request()).data
            controlled = request(controlnets=(AskedControlNet(EDGES, outline),))
            pictures[shares] = [outline, *(client.generate(controlled).data for _ in range(2))]
            assert sent_bytes(metrics, transport) > 1e6

    assert pictures[True] == pictures[False]
    assert pictures[True][1] == pictures[True][2] != pictures[True][0]


def test_a_lora_changes_its_own_picture_and_a_hit_resumes(tmp_path: Path) -> None:
    with painted_with(tmp_path, shares=False) as (client, _):
        before = client.generate(request()).data
        neon = client.generate(request(loras=(AskedLora(NEON),))).data
        after = client.generate(request()).data
        # What the first one leaves is there a moment after it.
        asked = (request(cache=CacheMode.READ_WRITE, num_inference_steps=50, seed=seed) for seed in range(4, 40))
        saved = next((found for one in asked if (found := client.generate(one).provenance.steps_saved)), 0)

    assert before == after != neon
    assert saved > 0
