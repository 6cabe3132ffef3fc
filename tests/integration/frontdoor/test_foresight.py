"""Test a discriminator that reads prompts: it receives them, and may skip the light image of a hard prompt."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from lab.fixtures.cascade import CascadeSuite, running_cascade
from lab.fixtures.frontdoor_suite import until
from pentimento.dataplane.effects import PrepareRoute
from pentimento.dataplane.events import PlanReceived, ProfilesReceived, SpeedProfile
from pentimento.dataplane.requests import Phase
from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.domain.generation import Donor, FromLatent, ObjectReference, PlanVersion
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.policies import worth
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache

UNNAMED = ImageRequest(prompt="a red circle", seed=1, cache=CacheMode.OFF)
EMBEDDED = struct.pack("<2f", 1.0, 0.0)
SKIPPING = {"skip_light_below": 0.05}


@asynccontextmanager
async def reading(
    folder: Path, embedder: ChosenEmbedder | None = None, gateway: ChosenGateway | None = None, **changes: Any
) -> AsyncIterator[CascadeSuite]:
    """Run a cascade with an embedder, with rejected light images, and with a cache if a gateway is given."""
    address = f"unix:{folder / 'c'}"
    server = await serve_cache(embedder or ChosenEmbedder(), gateway or ChosenGateway(), address)
    addresses = {"embedder_address": (address,)} | ({"gateway_address": address} if gateway else {})
    try:
        async with running_cascade(folder, 0.2, **{**addresses, **changes}) as cascade:
            yield cascade
    finally:
        await server.stop()


async def test_prompt_is_scored_with_image_regardless_of_cache(folder: Path) -> None:
    gateway = ChosenGateway()
    async with reading(folder, gateway=gateway) as cascade:
        await cascade.suite.paint(UNNAMED)

    (asked,) = cascade.discriminator.asked
    prompt = asked.images[0].prompt
    assert (prompt.values, prompt.dimension_count, prompt.encoder_digest) == (EMBEDDED, 2, "sha256:encoder")
    assert (gateway.lookups, gateway.reserved) == ([], [])
    assert len(cascade.discriminator.foresights) == 1


async def test_image_without_embedder_is_scored_without_prompt(folder: Path) -> None:
    embedder = ChosenEmbedder()
    embedder.error = Unavailable("DOWN", "nobody there", retry_after_ms=1)
    async with reading(folder, embedder) as cascade:
        completed = await cascade.suite.paint(UNNAMED)

    (asked,) = cascade.discriminator.asked
    assert not asked.images[0].HasField("prompt")
    assert "prompt's embedding skipped: embedder unavailable" in completed.provenance.notes


async def test_hard_prompt_goes_directly_to_heavy_model(folder: Path) -> None:
    left_out = left_out_count()
    async with reading(folder, **SKIPPING) as cascade:
        cascade.discriminator.foreseen = 0.03
        explanation = await cascade.suite.client.explain(UNNAMED)
        completed = await cascade.suite.paint(UNNAMED)

    note = "light skipped: the prompt predicts a good image with probability 0.030"
    provenance = completed.provenance
    assert (provenance.model_digest, provenance.attempt_number) == ("sha256:heavy", 1)
    assert [stage.model for stage in provenance.route.stages] == ["light", "heavy"]
    assert note in provenance.notes
    assert not cascade.light.executed
    assert not cascade.discriminator.asked
    assert left_out_count() == left_out + 1
    assert (explanation.pool, explanation.route.model) == ("heavy", "heavy")
    assert f"stages: {note}" in explanation.reasons
    (prompt,) = cascade.discriminator.foresights[-1].prompts
    assert prompt.prompt.values == EMBEDDED


@pytest.mark.parametrize(
    ("foreseen", "light", "scored", "note"),
    [
        (0.03, 0, 0, "light skipped: the prompt predicts a good image with probability 0.030"),
        (0.95, 1, 0, "light needs no score: the prompt predicts a good image with probability 0.950"),
        (0.5, 1, 1, ""),
    ],
)
async def test_sure_prompts_need_no_setting(folder: Path, foreseen: float, light: int, scored: int, note: str) -> None:
    async with reading(folder, confidence_threshold=None) as cascade:
        cascade.discriminator.foreseen = foreseen
        explanation = await cascade.suite.client.explain(UNNAMED)
        completed = await cascade.suite.paint(UNNAMED)

    told = [one for one in completed.provenance.notes if "the prompt predicts" in one]
    assert told == ([note] if note else [])
    assert [one for one in explanation.reasons if "the prompt predicts" in one] == [f"stages: {one}" for one in told]
    assert (len(cascade.light.executed), len(cascade.discriminator.asked)) == (light, scored)
    # 0.2 is below the threshold that the discriminator recommends, 0.3.
    assert completed.provenance.model_digest == ("sha256:light" if foreseen > 0.9 else "sha256:heavy")
    assert {stage.confidence_threshold for stage in completed.provenance.route.stages} == {0.3, 0.0}


async def test_discriminator_without_head_delays_no_request(folder: Path) -> None:
    async with reading(folder, confidence_threshold=None) as cascade:
        await cascade.suite.client.explain(UNNAMED)
        completed = await cascade.suite.paint(UNNAMED)

    assert (len(cascade.discriminator.foresights), len(cascade.discriminator.asked)) == (1, 1)
    assert not any("foresight" in note for note in completed.provenance.notes)


@pytest.mark.parametrize("foreseen", [0.06, 0.89])
async def test_other_prompts_run_the_light_model(folder: Path, foreseen: float) -> None:
    async with reading(folder, **SKIPPING) as cascade:
        cascade.discriminator.foreseen = foreseen
        explanation = await cascade.suite.client.explain(UNNAMED)
        completed = await cascade.suite.paint(UNNAMED)

    assert len(cascade.light.executed) == 1
    assert not any("the prompt predicts" in note for note in completed.provenance.notes)
    assert explanation.pool == "light"


@pytest.mark.parametrize("hangs", [True, False])
async def test_discriminator_without_prediction_costs_no_image(folder: Path, hangs: bool) -> None:
    short = {"part_wait_factor": 2.0} if hangs else {}
    async with reading(folder, **{**SKIPPING, **short}) as cascade:
        cascade.discriminator.hangs = hangs
        completed = await cascade.suite.paint(UNNAMED)

    assert len(cascade.light.executed) == 1
    note = "foresight skipped: no discriminator answered"
    assert (note in completed.provenance.notes) is hangs


async def test_request_moved_from_empty_light_pool_is_no_prompt_skip(folder: Path) -> None:
    left_out = left_out_count()
    async with reading(folder, **SKIPPING) as cascade:
        cascade.discriminator.foreseen = 0.5
        cascade.light.held = replace(cascade.light.held, model="other", model_digest="sha256:other")
        cascade.light.change()
        state = cascade.suite.frontdoor.interpreter.dataplane.state
        await until(lambda: not state.pools["light"].workers)
        request_id = (await cascade.suite.client.submit(UNNAMED)).request_id
        await until(lambda: state.requests[request_id].phase is Phase.QUEUED)
        pools = (PoolPlan("light", "light", ()), PoolPlan("heavy", "heavy", ("w2",)))
        cascade.suite.frontdoor.interpreter.submit(PlanReceived(Plan(PlanVersion(1, 1), pools=pools)))
        (ended,) = [event async for event in cascade.suite.client.attach(request_id) if isinstance(event, Completed)]

    assert ended.provenance.model_digest == "sha256:heavy"
    assert not any("the prompt predicts" in note for note in ended.provenance.notes)
    assert left_out_count() == left_out


async def test_cache_that_saves_heavy_steps_pays_where_light_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worth, "_INVESTED_IMAGES", 1e-9)
    gateway = ChosenGateway()
    gateway.start = FromLatent(ObjectReference("latents/x", "sha256:0", 64), 2, 4, 4.5, Donor("e", "sha256:1", 0.9))
    async with reading(folder, gateway=gateway, cache_cost_ms=1e-6, **SKIPPING) as cascade:
        cascade.discriminator.foreseen = 0.03
        asked = [replace(UNNAMED, seed=seed, cache=CacheMode.READ_WRITE) for seed in range(4)]
        starts = [(await cascade.suite.paint(one)).provenance.route.start for one in asked]

    assert {type(start) for start in starts} == {FromLatent}
    # one for each stage of each request
    assert len(gateway.lookups) == 8


async def test_request_with_model_gets_no_prediction(folder: Path) -> None:
    async with reading(folder, **SKIPPING) as cascade:
        cascade.discriminator.foreseen = 0.0
        completed = await cascade.suite.paint(replace(UNNAMED, model="light"))

    assert completed.provenance.model_digest == "sha256:light"
    assert not cascade.discriminator.foresights


@pytest.mark.parametrize(
    ("light_s", "cost_ms", "skipped"),
    [
        (2e-6, 0.0, True),  # two steps of a light image, four of a heavy one: as many seconds
        (1.9e-6, 0.0, False),
        (1.9e-6, 1.0, True),  # the discriminator takes the workers' processors
    ],
)
async def test_light_stage_that_saves_no_device_seconds_is_skipped(
    folder: Path, light_s: float, cost_ms: float, skipped: bool
) -> None:
    embedder = ChosenEmbedder()
    async with reading(folder, embedder, cache_cost_ms=cost_ms) as cascade:
        speeds = (SpeedProfile("light", ((1, light_s),)), SpeedProfile("heavy", ((1, 1e-6),)))
        cascade.suite.frontdoor.interpreter.submit(ProfilesReceived(speeds))
        explanation = await cascade.suite.client.explain(UNNAMED)
        completed = await cascade.suite.paint(UNNAMED)

    skips = [note for note in completed.provenance.notes if note.startswith("light skipped: it takes 1.")]
    assert len(skips) == int(skipped)
    assert explanation.pool == ("heavy" if skipped else "light")
    assert (len(cascade.light.executed), len(cascade.discriminator.asked)) == ((0, 0) if skipped else (1, 1))
    assert len(cascade.discriminator.foresights) == int(not skipped)
    assert bool(embedder.text_calls) is not skipped


@pytest.mark.parametrize(("saved_share", "is_left_out", "then_ms"), [(0.2, True, 0.4), (0.3, False, 0.7)])
async def test_cascade_that_saves_less_than_it_takes_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, saved_share: float, is_left_out: bool, then_ms: float
) -> None:
    monkeypatch.setattr(worth, "_INVESTED_IMAGES", 1e-9)
    async with reading(folder, cache_cost_ms=1.0, **SKIPPING) as cascade:
        cascade.discriminator.foreseen = 0.9
        # A light image takes 1 ms, a heavy one 4.1: predictions that take 1 ms must save a share of 0.25.
        speeds = (SpeedProfile("light", ((1, 0.5e-6),)), SpeedProfile("heavy", ((1, 1e-6),)))
        interpreter = cascade.suite.frontdoor.interpreter
        interpreter.submit(ProfilesReceived(speeds))
        cascade_worth = interpreter._performers[PrepareRoute].__self__.foresight.worth  # type: ignore[attr-defined]
        cascade_worth.note("light>heavy", saved_share)
        explanation = await cascade.suite.client.explain(UNNAMED)
        completed = await cascade.suite.paint(UNNAMED)
        counted = cascade_worth.why_left_out("light>heavy", 0.002)

    skips = "light skipped: one request in 16 asks the cascade: a prediction saves 0.8 ms, the cascade takes 1"
    assert (skips in completed.provenance.notes) is is_left_out
    assert any(skips in reason for reason in explanation.reasons) is is_left_out
    assert len(cascade.light.executed) == int(not is_left_out)
    # For an image of 2 ms: 0.2 without a prediction, else the mean of 0.3 and this prediction's 0.9 - (1 + 1) / 4.1.
    assert f"a prediction saves {then_ms} ms" in counted


def left_out_count() -> float:
    return REGISTRY.get_sample_value("pentimento_frontdoor_left_out_stages_total") or 0.0
