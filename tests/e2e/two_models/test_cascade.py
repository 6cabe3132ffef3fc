"""A real cascade: the light model paints, the discriminator scores, the heavy one paints what was doubted."""

import pytest

from pentimento.clients.embedder import EmbedderClient
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.pictures.decoding import decode
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite
from pentimento.supervisor.models import WEIGHTS
from tests.e2e.two_models.conftest import CONFIDENCE_THRESHOLD

PROMPTS = [f"{size} {thing}" for size in ("a small", "a large") for thing in ("red circle", "blue star")]


def asking(prompt: str, seed: int, model: str = "") -> ImageRequest:
    return ImageRequest(prompt, model=model, seed=seed, cache=CacheMode.OFF)


async def confidence_of(suite: LocalSuite, image: bytes, prompt: str) -> float:
    """What the shipped discriminator says of the picture, read here, beside what the suite's embedder makes of its
    prompt."""
    discriminator = open_discriminator(WEIGHTS / "tiny-router")
    assert discriminator.head is not None
    async with open_channel(f"unix:{suite.state.sockets}/embedder.sock", RpcChannelSettings()) as channel:
        (embedding,) = await EmbedderClient(channel).embed_text([prompt])
    pixels = decode(image, "image", discriminator.pixels)
    return discriminator.confidences_with([pixels], [discriminator.head.prompt("prompt", embedding)])[0]


async def test_what_the_discriminator_doubts_is_painted_by_the_heavy_model(suite_of_two: LocalSuite) -> None:
    doubts = []
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        for seed, prompt in enumerate(PROMPTS):
            light = await client.generate(asking(prompt, seed, "tiny-light"))
            confidence = await confidence_of(suite_of_two, light.data, prompt)

            answer = await client.generate(asking(prompt, seed))

            doubts.append(confidence < CONFIDENCE_THRESHOLD)
            assert [stage.model for stage in answer.provenance.route.stages] == ["tiny-light", "tiny-heavy"]
            assert answer.provenance.spec.model == ("tiny-heavy" if doubts[-1] else "tiny-light")
            assert not any("the prompt predicts" in note or "UNSCORED" in note for note in answer.provenance.notes)
            if not doubts[-1]:
                assert answer.provenance.discriminator_confidence == pytest.approx(confidence, abs=1e-4)
    assert set(doubts) == {True, False}


async def test_a_prompt_that_is_sure_to_be_hard_skips_the_light_model(suite_of_two: LocalSuite) -> None:
    """Told by a real head of a real embedding."""
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        skipped = (await client.generate(asking("a blue square to the left of a red star", 1))).provenance

    assert skipped.spec.model == "tiny-heavy"
    assert skipped.discriminator_confidence is None
    assert any(note.startswith("tiny-light skipped: the prompt predicts") for note in skipped.notes)
