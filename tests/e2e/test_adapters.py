"""Test LoRAs and ControlNets of the tiny models through every process."""

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from lab.fixtures.controlled_generation import conditions_for
from pentimento.domain.errors import NotFound
from pentimento.domain.image_request import AskedControlNet, AskedLora, CacheMode, ImageRequest
from pentimento.files.adapter_registry import read_adapters
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.sdk.generated_image import read_provenance
from pentimento.stores.objects.store import digest_of
from pentimento.supervisor.local import LocalSuite
from tests.support.images import png_of
from zoo.drawing.conditions import edge_f1, edges

EDGES, LAYOUT = "tiny-controlnet-edges", "tiny-controlnet-layout"
NEON, MOSAIC = "tiny-lora-neon", "tiny-lora-mosaic"
WEIGHTS = Path(__file__).parents[2] / "zoo" / "weights"
REGISTRY = read_adapters(WEIGHTS / "registry.json")
SIDE_PX = 64
PROMPT = "a large red circle on a white background"


@pytest.fixture
async def client(suite: LocalSuite) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(suite.endpoint.public) as opened:
        # The plan with the adapters may arrive a moment after the suite serves.
        for _ in range(600):
            if {EDGES, LAYOUT, NEON, MOSAIC} <= {adapter.name for adapter in await opened.list_adapters()}:
                break
            await asyncio.sleep(0.1)
        yield opened


def outline() -> bytes:
    """Draw the thin white outline of a circle at the left, on black."""
    drawing = Image.new("L", (SIDE_PX, SIDE_PX))
    ImageDraw.Draw(drawing).ellipse((6, 18, 34, 46), outline=255)
    return png_of(drawing)


def request(*controlnets: AskedControlNet, seed: int = 3, **fields: object) -> ImageRequest:
    asked = {"num_inference_steps": 20, "cache": CacheMode.OFF, "seed": seed, "controlnets": controlnets}
    return ImageRequest(PROMPT, **{**asked, **fields})  # type: ignore[arg-type]


def pixels(data: bytes) -> Tensor:
    array = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float32) / 255.0
    return torch.from_numpy(array).permute(2, 0, 1)[None]


def edge_score(image: GeneratedImage) -> float:
    """Return the F1 score, 0..1, of the image's edges against the conditioning image."""
    wanted = (pixels(outline())[:, :1] > 0.5).to(torch.float32)
    return float(edge_f1(edges(pixels(image.data)), wanted))


async def test_controlnet_image_follows_edges_and_records_digest(client: AsyncClient) -> None:
    free = await client.generate(request())
    told = await client.generate(request(AskedControlNet(EDGES, outline())))

    assert edge_score(told) > edge_score(free) + 0.2
    (selected,) = told.provenance.spec.controlnets
    assert (selected.name, selected.digest) == (EDGES, REGISTRY[EDGES].adapter.digest)
    assert [part.field for part in told.provenance.inputs] == ["controlnets[0].conditioning_image"]


def of_diffusers(asked: ImageRequest, condition: Tensor) -> Tensor:
    from diffusers import ControlNetModel, DDIMScheduler, StableDiffusionControlNetPipeline

    network = ControlNetModel.from_pretrained(WEIGHTS / EDGES)
    pipeline = StableDiffusionControlNetPipeline.from_pretrained(
        WEIGHTS / "tiny-heavy", controlnet=network, safety_checker=None, feature_extractor=None
    )
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    generated = pipeline(
        asked.prompt,
        image=condition,
        num_inference_steps=asked.num_inference_steps,
        guidance_scale=asked.guidance_scale,
        generator=torch.Generator().manual_seed(asked.seed),
    )
    return pixels(png_of(generated.images[0]))


async def test_controlled_image_equals_diffusers(client: AsyncClient) -> None:
    (condition,) = conditions_for(1, SIDE_PX, SIDE_PX)
    values = (condition[0].permute(1, 2, 0) * 255.0).round().to(torch.uint8)
    net = AskedControlNet(EDGES, png_of(Image.fromarray(values.numpy())))
    asked = request(net, num_inference_steps=8, guidance_scale=3.0, scheduler="ddim")

    image = await client.generate(asked)

    # The last bit of a level depends on a float32 rounding, so allow one level.
    assert pixels(image.data).sub(of_diffusers(asked, condition)).abs().max() <= 1.5 / 255


async def test_lora_changes_only_its_own_image(client: AsyncClient) -> None:
    before = await client.generate(request())
    neon, mosaic = [await client.generate(request(loras=(AskedLora(name),))) for name in (NEON, MOSAIC)]
    after = await client.generate(request())

    images = [pixels(image.data) for image in (before, neon, mosaic)]
    assert (images[0] - images[1]).abs().mean() > 0.05
    assert (images[1] - images[2]).abs().mean() > 0.05
    assert after.data == before.data
    (selected,) = neon.provenance.spec.loras
    weights = REGISTRY[NEON].directory / "pytorch_lora_weights.safetensors"
    assert (selected.name, selected.scale, selected.digest) == (NEON, 1.0, digest_of(weights.read_bytes()))


async def wait_until_listed(client: AsyncClient, name: str, *, there: bool) -> None:
    """Wait until the frontdoor lists the LoRA, or no longer lists it."""
    for _ in range(1200):
        if (name in {adapter.name for adapter in await client.list_adapters()}) is there:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} did not {'come' if there else 'go'}")


async def test_uploaded_lora_is_served_until_removed(suite: LocalSuite, client: AsyncClient) -> None:
    weights = REGISTRY[NEON].directory / "pytorch_lora_weights.safetensors"
    about = ("--name", "uploaded-neon", "--family", REGISTRY[NEON].adapter.family, "--licence", "Apache-2.0")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pentimento.cli", "adapters", *arguments]
        where = ["--state-dir", str(suite.state.path)]
        return subprocess.run([*command, *where], capture_output=True, text=True, check=False)

    added = await asyncio.to_thread(run, "add", str(weights), *about)
    assert added.returncode == 0, added.stderr
    await wait_until_listed(client, "uploaded-neon", there=True)
    expected = await client.generate(request(loras=(AskedLora(NEON),)))
    image = await client.generate(request(loras=(AskedLora("uploaded-neon"),)))

    assert torch.equal(pixels(image.data), pixels(expected.data))
    (selected,) = image.provenance.spec.loras
    assert (selected.digest, selected.object is not None) == (digest_of(weights.read_bytes()), True)
    removed = await asyncio.to_thread(run, "remove", "uploaded-neon")
    assert removed.returncode == 0, removed.stderr
    await wait_until_listed(client, "uploaded-neon", there=False)
    with pytest.raises(NotFound, match="uploaded-neon"):
        await client.generate(request(loras=(AskedLora("uploaded-neon"),)))


async def test_lora_with_zero_scale_changes_nothing(client: AsyncClient) -> None:
    free = await client.generate(request())
    weightless = await client.generate(request(loras=(AskedLora(NEON, 0.0),)))

    assert pixels(weightless.data).sub(pixels(free.data)).abs().max() <= 2 / 255


async def test_replay_with_lora_and_controlnet_gives_equal_bytes(client: AsyncClient) -> None:
    asked = request(AskedControlNet(EDGES, outline()), loras=(AskedLora(NEON, 0.8), AskedLora(MOSAIC, 0.3)))
    first = await client.generate(asked)

    inputs = {"controlnets[0].conditioning_image": outline()}
    again = await client.replay(first.provenance.request_id, inputs=inputs)

    assert again.provenance.replay_equal and again.data == first.data


async def test_controlnet_with_zero_scale_changes_nothing(client: AsyncClient) -> None:
    free = await client.generate(request())
    weightless = await client.generate(request(AskedControlNet(EDGES, outline(), conditioning_scale=0.0)))

    assert pixels(weightless.data).sub(pixels(free.data)).abs().max() <= 2 / 255


async def test_replay_with_two_controlnets_gives_equal_bytes(client: AsyncClient) -> None:
    nets = (AskedControlNet(EDGES, outline(), 0.7), AskedControlNet(LAYOUT, outline(), 0.5, 0.0, 0.5))
    first = await client.generate(request(*nets))
    inputs = {f"controlnets[{index}].conditioning_image": outline() for index in range(2)}

    again = await client.replay(first.provenance.request_id, inputs=inputs)

    assert again.provenance.replay_equal and again.data == first.data


async def test_command_generates_and_replays_with_lora_and_controlnet(
    suite: LocalSuite, client: AsyncClient, tmp_path: Path
) -> None:
    told, image = tmp_path / "told.png", tmp_path / "picture.png"
    told.write_bytes(outline())
    where = ["--state-dir", str(suite.state.path)]

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pentimento.cli", *arguments, *where]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    asked = ["--steps", "8", "--seed", "5", "--no-cache", "-o", str(image), "--lora", f"{NEON}:0.5"]
    generated = await asyncio.to_thread(run, "generate", PROMPT, "--controlnet", f"{EDGES}:{told}:0.8:0-0.9", *asked)
    assert generated.returncode == 0, generated.stderr
    spec = read_provenance(image.read_bytes())["spec"]
    assert [(lora["name"], lora["scale"]) for lora in spec["loras"]] == [(NEON, 0.5)]
    (selected,) = spec["controlnets"]
    assert (selected["conditioning_scale"], selected["end_fraction"]) == (0.8, 0.9)

    again = await asyncio.to_thread(run, "replay", str(image), "--conditioning-image", str(told))
    assert again.returncode == 0, again.stdout + again.stderr
