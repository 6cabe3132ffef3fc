"""A real cascade: the light model paints, the discriminator scores, the heavy one paints what was doubted."""

from collections.abc import Iterator

import pytest

from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.pictures.decoding import decode
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import WEIGHTS

THRESHOLD = 0.5
PROMPTS = [
    f"{size} {thing}" for size in ("a small", "a large") for thing in ("red circle", "blue star", "green square")
]


@pytest.fixture
def suite() -> Iterator[LocalSuite]:
    with local_suite(["--cascade", "tiny-light,tiny-heavy", "--confidence-threshold", str(THRESHOLD)]) as running:
        yield running


def asking(prompt: str, seed: int, model: str = "") -> ImageRequest:
    return ImageRequest(prompt, model=model, seed=seed, cache=CacheMode.OFF)


async def test_what_the_discriminator_doubts_is_painted_by_the_heavy_model(suite: LocalSuite) -> None:
    discriminator = open_discriminator(WEIGHTS / "tiny-discriminator")
    async with AsyncClient(suite.endpoint.public) as client:
        for seed, prompt in enumerate(PROMPTS):
            light = await client.generate(asking(prompt, seed, "tiny-light"))
            confidence = discriminator.confidences([decode(light.data, "image", discriminator.pixels)])[0]

            answer = await client.generate(asking(prompt, seed))

            doubted = confidence < THRESHOLD
            assert [stage.model for stage in answer.provenance.route.stages] == ["tiny-light", "tiny-heavy"]
            assert answer.provenance.spec.model == ("tiny-heavy" if doubted else "tiny-light")
            if not doubted:
                assert answer.provenance.discriminator_confidence == pytest.approx(confidence, abs=1e-4)


async def test_a_prompt_that_is_sure_to_be_hard_skips_the_light_model() -> None:
    """Told by a real head of a real embedding; the shipped head's probabilities of both are far from the bound."""
    flags = ["--cascade", "tiny-light,tiny-heavy", "--discriminator", "tiny-router", "--confidence-threshold", "0.45"]
    bound = {"PENTIMENTO_FRONTDOOR_SKIP_LIGHT_BELOW": "0.4", "PENTIMENTO_FRONTDOOR_FORESEE_TIMEOUT_MS": "20000"}
    hard, easy = "a small red circle above a large blue square on a yellow background", "a large red circle"
    with local_suite(flags, environment=bound) as running:
        async with AsyncClient(running.endpoint.public) as client:
            skipped, painted = [(await client.generate(asking(prompt, 1))).provenance for prompt in (hard, easy)]

    assert (skipped.spec.model, skipped.attempt_number) == ("tiny-heavy", 1)
    assert any(note.startswith("tiny-light left out: by the prompt alone") for note in skipped.notes)
    assert not any("left out" in note or "UNSCORED" in note for note in painted.notes)
    assert painted.attempt_number == 2 or painted.discriminator_confidence is not None
