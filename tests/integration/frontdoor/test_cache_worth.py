"""Test that a cache which takes more than its hits save is used by one request in sixteen."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.generation import Donor, FromLatent, FromNoise, ObjectReference
from pentimento.domain.image_request import ImageRequest
from pentimento.policies import worth
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache

ASKED = ImageRequest(prompt="a red circle", num_inference_steps=10)
HIT = FromLatent(ObjectReference("latents/x", "sha256:0", 2048), 3, 10, 4.5, Donor("entry", "sha256:1", 0.91))
# Generous on a busy machine.


@pytest.fixture(autouse=True)
def first_lookup_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the mean from the first lookup; tests/unit/policies/test_worth.py holds when it really counts."""
    monkeypatch.setattr(worth, "_INVESTED_IMAGES", 1e-9)


@pytest.fixture
def embedder() -> ChosenEmbedder:
    return ChosenEmbedder()


async def generate(suite: FrontdoorSuite, count: int) -> list[str]:
    """Return the reason of each image's start."""
    found = [await suite.paint(replace(ASKED, seed=seed)) for seed in range(count)]
    return [completed.provenance.route.reason for completed in found]


@pytest.mark.slow
async def test_cache_without_savings_is_used_by_one_in_sixteen(
    folder: Path, worker: PacedWorker, embedder: ChosenEmbedder
) -> None:
    # An image takes longer than the cache costs, on any machine.
    worker.step_s = 0.002
    gateway, address = ChosenGateway(), f"unix:{folder / 'c'}"
    gateway.start = FromNoise()
    server = await serve_cache(embedder, gateway, address)
    async with running_suite(folder, embedder_address=address, gateway_address=address, cache_cost_ms=5.0) as suite:
        # The speed is known after the first image: the second one's lookup counts.
        first = await generate(suite, 2)
        later = await generate(suite, 32)
        explained = await suite.client.explain(ASKED)
    await server.stop()

    told = "one request in 16 asks the cache: a lookup saves 0.0 ms, the cache takes 5"
    assert first == 2 * ["as the test chose"]
    assert later == 2 * [*15 * [told], "as the test chose"]
    # The last one is the explanation's.
    assert (len(gateway.lookups), len(gateway.reserved)) == (2 + 2 + 1, 2 + 2)
    # The fleet's image time is the price of a miss; an explanation prices nothing.
    assert [asked.noise_s > 0.0 for asked in gateway.lookups] == [False, True, True, True, False]
    assert f"start: {told}" in explained.reasons


@pytest.mark.slow
@pytest.mark.parametrize("cost_ms", [0.0, 1e-6], ids=["it takes nothing", "hits save more"])
async def test_worthwhile_cache_is_used_by_all(
    folder: Path, worker: PacedWorker, embedder: ChosenEmbedder, cost_ms: float
) -> None:
    gateway, address = ChosenGateway(), f"unix:{folder / 'c'}"
    gateway.start = HIT if cost_ms else FromNoise()
    server = await serve_cache(embedder, gateway, address)
    async with running_suite(folder, embedder_address=address, gateway_address=address, cache_cost_ms=cost_ms) as suite:
        reasons = await generate(suite, 34)
    await server.stop()

    assert set(reasons) == {"as the test chose"}
    assert len(gateway.lookups) == 34
