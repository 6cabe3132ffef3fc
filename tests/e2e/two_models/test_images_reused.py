"""Test a start from another model's final image."""

import asyncio
from collections.abc import Iterator

import pytest

from pentimento.domain.generation import FromImage, FromNoise
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.supervisor.local import LocalSuite, local_suite

MODELS = ["--model", "tiny-heavy", "--model", "tiny-light"]


@pytest.fixture
def mixture() -> Iterator[LocalSuite]:
    """Start both models with the zoo's profiles; hits of images go to the light model."""
    with local_suite([*MODELS, "--policy", "resident-mixture"]) as running:
        yield running


def asking(model: str, prompt: str, seed: int, cache: CacheMode) -> ImageRequest:
    """Return a request of a size that no other test has, so that lookups miss entries of other tests."""
    size = {"width_px": 48, "height_px": 48}
    return ImageRequest(prompt, model=model, seed=seed, num_inference_steps=10, cache=cache, **size)


async def generate_until_refined(client: AsyncClient, wanted: ImageRequest) -> GeneratedImage:
    """Repeat the request until it hits: an entry is committed after its image was answered and embedded."""
    async with asyncio.timeout(120):
        while True:
            image = await client.generate(wanted)
            if isinstance(image.provenance.route.start, FromImage):
                return image


async def test_light_model_refines_image_of_heavy_model(suite_of_two: LocalSuite) -> None:
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        miss = await client.generate(asking("tiny-heavy", "a small blue star on black", 1, CacheMode.READ_WRITE))

        # It leaves nothing itself: what it starts from is the heavy model's.
        hit = await generate_until_refined(client, asking("tiny-light", "a blue star on black", 2, CacheMode.READ))

    assert (miss.provenance.spec.model, miss.provenance.route.start) == ("tiny-heavy", FromNoise())
    start = hit.provenance.route.start
    assert isinstance(start, FromImage)
    assert (hit.provenance.spec.model, start.start_step, hit.provenance.steps_run) == ("tiny-light", 3, 8)
    assert start.donor.ancestor_depth == 0
    assert hit.data != miss.data


async def test_hit_without_model_is_refined_by_light_model(
    mixture: LocalSuite,
) -> None:
    # The heavy model follows this prompt well, and lookups compare the image's content.
    prompt = "a large flat yellow circle in the top right on a white background"
    async with AsyncClient(mixture.endpoint.public) as client:
        miss = await client.generate(ImageRequest(prompt, seed=1, cache=CacheMode.READ_WRITE))
        hit = await generate_until_refined(client, ImageRequest(prompt, seed=2, cache=CacheMode.READ))

    assert (miss.provenance.route.model, miss.provenance.route.start) == ("tiny-heavy", FromNoise())
    made, start = hit.provenance, hit.provenance.route.start
    assert isinstance(start, FromImage)
    # 30 of 50, of the light model's own 12 steps.
    assert (made.route.model, start.start_step, made.spec.num_inference_steps) == ("tiny-light", 7, 12)
    assert "images of tiny-light for tiny-heavy, alpha 0.9 by lower_bound" in made.route.reason
