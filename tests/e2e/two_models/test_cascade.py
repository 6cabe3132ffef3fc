"""Test a real cascade without any setting: the light model generates, the default discriminator scores, and the heavy
model generates uncertain requests again. A sure prompt alone may decide."""

import pytest

from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.diffusion.discriminators import PromptHead, open_discriminator
from pentimento.domain.embedding import Embedding
from pentimento.domain.foresight import Verdict
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.images.decoding import decode
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite
from pentimento.supervisor.models import WEIGHTS

DISCRIMINATOR = WEIGHTS / "tiny-router"
PROMPTS = [
    "a small green ring, a blue star and a red heart",
    "a large blue star",
    # The head is unsure of two prompts in a hundred at its own threshold.
    "a little brown star below a medium tangerine ring on a gray background",
    "a medium red square to the right of a medium brown pyramid, polka-dot style",
    "a medium-sized red love heart below a mid-sized golden disc, dotted style in a meadow",
    "a medium-sized pink moon to the right of a little triangle, flat style on black",
    "on a brick wall, a picture of a medium diamond to the left of a medium rose moon, shaded style",
    "a small block beside and left of a tiny red plus sign, polka-dot style on a striped background",
]


def asking(prompt: str, seed: int, model: str = "") -> ImageRequest:
    return ImageRequest(prompt, model=model, seed=seed, cache=CacheMode.OFF)


def shipped_head() -> PromptHead:
    head = open_discriminator(DISCRIMINATOR).head
    assert head is not None
    return head


async def embedding_of(suite: LocalSuite, prompt: str) -> Embedding:
    async with open_channel(f"unix:{suite.state.sockets}/embedder.sock", RpcChannelSettings()) as channel:
        (embedding,) = await EmbedderClient(channel).embed_text([prompt])
    return embedding


async def scored_count(suite: LocalSuite) -> int:
    async with open_channel(f"unix:{suite.state.sockets}/discriminator.sock", RpcChannelSettings()) as channel:
        return (await DiscriminatorClient(channel).status()).scored_count


async def confidence_of(suite: LocalSuite, image: bytes, prompt: str) -> float:
    """Return the shipped discriminator's confidence in an image, with the suite's embedding of its prompt."""
    discriminator = open_discriminator(DISCRIMINATOR)
    assert discriminator.head is not None
    embedding = discriminator.head.prompt("prompt", await embedding_of(suite, prompt))
    return discriminator.confidences_with([decode(image, "image", discriminator.pixels)], [embedding])[0]


async def with_verdict(suite: LocalSuite, verdict: Verdict) -> list[str]:
    """Return the prompts of PROMPTS with this verdict of the shipped head at its own threshold."""
    head = shipped_head()
    read = [head.prompt("prompt", await embedding_of(suite, prompt)) for prompt in PROMPTS]
    return [prompt for prompt, told in zip(PROMPTS, head.foresee(read), strict=True) if told.verdict is verdict]


async def test_doubtful_light_image_is_generated_by_heavy_model(suite_of_two: LocalSuite) -> None:
    threshold, doubts = shipped_head().record.threshold, []
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        for seed, prompt in enumerate(await with_verdict(suite_of_two, Verdict.UNSURE)):
            light = await client.generate(asking(prompt, seed, "tiny-light"))
            confidence = await confidence_of(suite_of_two, light.data, prompt)

            answer = await client.generate(asking(prompt, seed))

            # An idle heavy model skips a light image with a chance below its price.
            notes = answer.provenance.notes
            priced = any("of the next stage's device seconds" in note for note in notes)
            doubts.append(priced or confidence <= threshold)
            first, last = answer.provenance.route.stages
            assert (first.model, last.model) == ("tiny-light", "tiny-heavy")
            assert first.confidence_threshold == pytest.approx(threshold)
            assert answer.provenance.spec.model == ("tiny-heavy" if doubts[-1] else "tiny-light")
            assert not any("needs no score" in note or "UNSCORED" in note for note in notes)
            if not doubts[-1]:
                assert answer.provenance.discriminator_confidence == pytest.approx(confidence, abs=1e-4)
    assert doubts


@pytest.mark.parametrize(
    ("verdict", "model", "note"),
    [
        (Verdict.HARD, "tiny-heavy", "tiny-light skipped: the prompt predicts"),
        (Verdict.EASY, "tiny-light", "tiny-light needs no score: the prompt predicts"),
    ],
)
async def test_sure_prompt_makes_no_score_call(
    suite_of_two: LocalSuite, verdict: Verdict, model: str, note: str
) -> None:
    """Predict with a real head from a real embedding."""
    prompt, before = (await with_verdict(suite_of_two, verdict))[0], await scored_count(suite_of_two)
    async with AsyncClient(suite_of_two.endpoint.public) as client:
        found = (await client.generate(asking(prompt, 1))).provenance

    assert found.spec.model == model
    assert found.discriminator_confidence is None
    assert any(one.startswith(note) for one in found.notes)
    assert await scored_count(suite_of_two) == before
