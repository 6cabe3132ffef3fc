"""A request with a ControlNet through the whole suite: found by the controller, computed in a process of its own; the
picture equals that of diffusers' pipeline."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageRequest
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.testing.controlled_painting import conditions_for
from pentimento.testing.worker_under_test import png_of

WEIGHTS = Path(__file__).parents[2] / "zoo" / "weights"
EDGES, SIDE_PX, STEPS, SEED, GUIDANCE = "tiny-controlnet-edges", 64, 8, 3, 3.0
PROMPT = "a red circle"


@pytest.fixture(scope="module")
def suite_with_controlnets() -> Iterator[LocalSuite]:
    with local_suite(["--controlnets", "tiny"]) as running:
        yield running


def condition() -> tuple[Tensor, bytes]:
    """Pixels, and the same as PNG."""
    (pixels,) = conditions_for(1, SIDE_PX, SIDE_PX)
    values = (pixels[0].permute(1, 2, 0) * 255.0).round().to(torch.uint8)
    return pixels, png_of(Image.fromarray(values.numpy()))


def of_diffusers(pixels: Tensor) -> np.ndarray:
    from diffusers import ControlNetModel, DDIMScheduler, StableDiffusionControlNetPipeline

    network = ControlNetModel.from_pretrained(WEIGHTS / EDGES)
    pipeline = StableDiffusionControlNetPipeline.from_pretrained(
        WEIGHTS / "tiny-heavy", controlnet=network, safety_checker=None, feature_extractor=None
    )
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(SEED)
    options = {"num_inference_steps": STEPS, "guidance_scale": GUIDANCE, "generator": generator}
    return np.array(pipeline(PROMPT, image=pixels, **options).images[0])


def asked(image: bytes, name: str = EDGES) -> ImageRequest:
    return ImageRequest(
        PROMPT,
        width_px=SIDE_PX,
        height_px=SIDE_PX,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        scheduler="ddim",
        seed=SEED,
        cache=CacheMode.OFF,
        controlnets=(AskedControlNet(name, image),),
    )


async def test_a_controlled_picture_is_that_of_diffusers(suite_with_controlnets: LocalSuite) -> None:
    pixels, image = condition()

    async with AsyncClient(suite_with_controlnets.endpoint.public) as client:
        picture = await client.generate(asked(image))

    ours = np.array(Image.open(io.BytesIO(picture.data)).convert("RGB")).astype(int)
    # Grey levels: their last bit is that of an element in float32.
    assert np.abs(ours - of_diffusers(pixels).astype(int)).max() <= 1
    assert [selected.name for selected in picture.provenance.spec.controlnets] == [EDGES]


async def test_a_controlnet_that_nobody_serves_and_an_image_of_another_size_are_refused(
    suite_with_controlnets: LocalSuite,
) -> None:
    _, image = condition()
    async with AsyncClient(suite_with_controlnets.endpoint.public) as client:
        with pytest.raises(NotFound):
            await client.generate(asked(image, "no-such-controlnet"))
        with pytest.raises(InvalidArgument):
            await client.generate(asked(png_of(Image.new("RGB", (32, 32)))))
