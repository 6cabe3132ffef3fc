"""Test that one request in sixteen uses a cache that costs more than its hits save."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.cascade import running_cascade, running_parts
from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from lab.simulator.recorded_effects import read_recording, replay
from pentimento.domain.errors import Internal
from pentimento.domain.generation import Donor, FromLatent, FromNoise, ObjectReference
from pentimento.domain.image_request import Completed, ImageRequest
from pentimento.domain.jobs import RequestState
from pentimento.policies import worth
from pentimento.profiles.catalogue import HandoverMode
from pentimento.profiles.document import profiles_to_json
from pentimento.profiles.rules import ThresholdRule
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache
from tests.support.calls import last_completed
from tests.support.profiles import HANDOVER_PROFILE, HANDOVER_ROWS, changed

ASKED = ImageRequest(prompt="a red circle", num_inference_steps=10)
HIT = FromLatent(ObjectReference("latents/x", "sha256:0", 2048), 3, 10, 4.5, Donor("entry", "sha256:1", 0.91))


@pytest.fixture
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
@pytest.mark.usefixtures("first_lookup_decides")
async def test_cache_without_savings_is_used_by_one_in_sixteen(
    folder: Path, worker: PacedWorker, embedder: ChosenEmbedder
) -> None:
    # An image takes longer than the cache costs, on any machine.
    worker.step_s = 0.002
    gateway, address = ChosenGateway(), f"unix:{folder / 'c'}"
    gateway.start = FromNoise()
    server = await serve_cache(embedder, gateway, address)
    async with running_suite(folder, embedder_address=(address,), gateway_address=address, cache_cost_ms=5.0) as suite:
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
@pytest.mark.usefixtures("first_lookup_decides")
@pytest.mark.parametrize("cost_ms", [0.0, 1e-6], ids=["it takes nothing", "hits save more"])
async def test_worthwhile_cache_is_used_by_all(
    folder: Path, worker: PacedWorker, embedder: ChosenEmbedder, cost_ms: float
) -> None:
    gateway, address = ChosenGateway(), f"unix:{folder / 'c'}"
    gateway.start = HIT if cost_ms else FromNoise()
    server = await serve_cache(embedder, gateway, address)
    async with running_suite(
        folder, embedder_address=(address,), gateway_address=address, cache_cost_ms=cost_ms
    ) as suite:
        reasons = await generate(suite, 34)
    await server.stop()

    assert set(reasons) == {"as the test chose"}
    assert len(gateway.lookups) == 34


UNNAMED = ImageRequest(prompt="a red circle", seed=1)


async def test_confident_light_image_is_the_answer(folder: Path) -> None:
    async with running_cascade(folder, 0.9) as cascade:
        completed = await cascade.suite.paint(UNNAMED)

    provenance = completed.provenance
    assert (provenance.model_digest, provenance.discriminator_confidence) == ("sha256:light", 0.9)
    assert provenance.spec.num_inference_steps == 2
    assert not cascade.heavy.executed
    (asked,) = cascade.discriminator.asked
    assert (asked.cascade, asked.images[0].image) == ("light>heavy", completed.image)
    timings = {timing.stage: timing for timing in provenance.timings}
    order = ["accept", "route", "queue", "attempt", "send", "receive", "score"]
    assert [stage for stage in timings if stage in order] == order
    ends = [timings[stage].start_ms + timings[stage].duration_ms for stage in order]
    assert ends == sorted(ends)


async def test_doubtful_light_image_is_deferred_to_the_heavy_model(folder: Path) -> None:
    path = folder / "effects.jsonl"
    async with running_cascade(folder, 0.2, record_effects=str(path)) as cascade:
        completed = await cascade.suite.paint(UNNAMED)
        scored_count = len(cascade.discriminator.asked)
        named = await cascade.suite.paint(replace(UNNAMED, model="light"))
        assert (named.provenance.model_digest, len(cascade.discriminator.asked)) == ("sha256:light", scored_count)
        await cascade.suite.paint(UNNAMED)

    provenance = completed.provenance
    assert (provenance.model_digest, provenance.spec.model) == ("sha256:heavy", "heavy")
    assert [stage.model for stage in provenance.route.stages] == ["light", "heavy"]
    assert provenance.spec.num_inference_steps == 4
    assert provenance.spec.seed == cascade.light.executed[0].seed
    assert provenance.attempt_number == 2
    # The recording of it replays to the same effects.
    lines = path.read_text().splitlines()
    dataplane, steps = read_recording(lines, "effects.jsonl")
    count, divergence = replay(dataplane, steps)
    assert divergence is None
    assert count == len(lines) - 1 > 20


@pytest.mark.parametrize(
    ("changes", "settings", "taken", "told"),
    [
        ({}, {}, 2, "heavy skips 50% of its steps from the image of light: the hand-over profile, alpha 0.95 by mean"),
        ({}, {"handover": HandoverMode.OFF}, 4, "heavy starts from noise after light: hand-over is off"),
        ({"model_digest": "sha256:x"}, {}, 4, "heavy starts from noise after light: no hand-over profile of these w"),
        ({"alpha": 0.9}, {}, 4, "the hand-over profile promises 0.9 of the quality, 0.95 is asked for"),
        ({"rows": HANDOVER_ROWS[3:]}, {}, 4, "the hand-over profile allows no step to be left out"),
    ],
)
async def test_heavy_model_starts_from_light_image_by_profile(
    folder: Path, changes: dict[str, Any], settings: dict[str, Any], taken: int, told: str
) -> None:
    of = {"model_digest": "sha256:heavy", "reference_digest": "sha256:light", "rule": ThresholdRule.MEAN}
    path = folder / "handover.json"
    path.write_text(profiles_to_json(changed(HANDOVER_PROFILE, **{**of, "rows": HANDOVER_ROWS[:1], **changes})))
    async with running_cascade(folder, 0.2, profiles=(path,), **settings) as cascade:
        await cascade.suite.paint(UNNAMED)
        reasons = (await cascade.suite.client.explain(UNNAMED)).reasons

    (spec,) = cascade.heavy.executed
    assert (4 if spec.init_image is None else round(4 * spec.init_image.strength)) == taken
    assert any(told in reason for reason in reasons), reasons


async def test_light_image_is_the_answer_if_the_heavy_model_fails(folder: Path) -> None:
    async with running_cascade(folder, 0.2) as cascade:
        cascade.heavy.fail_with = Internal("NAN_IN_LATENT", "step 3")
        completed = await cascade.suite.paint(UNNAMED)

    assert completed.provenance.model_digest == "sha256:light"
    assert "degraded: NAN_IN_LATENT" in completed.provenance.notes


@pytest.mark.parametrize(("light_j", "joules"), [(2.0, 5.0), (None, None)])
async def test_rejected_light_image_counts_in_device_seconds_and_joules(
    folder: Path, light_j: float | None, joules: float | None
) -> None:
    """Joules are unknown if one of the devices cannot measure them."""
    async with running_cascade(folder, 0.2) as cascade:
        cascade.light.device_s, cascade.light.energy_j = 0.5, light_j
        cascade.heavy.device_s, cascade.heavy.energy_j = 4.0, 3.0
        completed = await cascade.suite.paint(UNNAMED)

    assert (completed.provenance.device_seconds, completed.provenance.energy_joules) == (4.5, joules)


@pytest.mark.parametrize(
    ("confidence", "hangs"), [(None, False), (0.9, True)], ids=["no score", "the discriminator never answers"]
)
@pytest.mark.parametrize(("accept", "digest"), [(True, "sha256:light"), (False, "sha256:heavy")])
async def test_unscored_light_image_is_accepted_by_setting(
    folder: Path, confidence: float | None, hangs: bool, accept: bool, digest: str
) -> None:
    waits = {"part_wait_factor": 0.05} if hangs else {}
    async with running_cascade(folder, confidence, fall_back=accept, **waits) as cascade:
        cascade.discriminator.hangs = hangs
        completed = await cascade.suite.paint(UNNAMED)

    assert completed.provenance.model_digest == digest
    assert ("degraded: UNSCORED" in completed.provenance.notes) == accept


async def test_image_too_large_for_light_model_goes_to_heavy_model(folder: Path) -> None:
    large = replace(UNNAMED, width_px=64, height_px=64)
    async with running_parts(folder, 0.9) as parts:
        parts.light.held = replace(parts.light.held, max_size_px=32)
        async with running_suite(folder, **parts.settings) as suite:
            await suite.wait_for_workers(2)
            explanation = await suite.client.explain(large)
            completed = await suite.paint(large)

    assert (explanation.pool, explanation.route.model) == ("heavy", "heavy")
    assert completed.provenance.model_digest == "sha256:heavy"


async def ended(suite: FrontdoorSuite, request_id: str) -> Completed:
    last = await last_completed(suite.client.generate(UNNAMED, "key"))
    assert last.request_id == request_id
    assert (await suite.client.get_request(request_id)).state is RequestState.COMPLETED
    return last


@pytest.mark.parametrize(
    ("confidence", "held", "waits", "model", "orders"),
    [
        (0.2, "heavy", False, "heavy", (1, 1)),  # the heavy image is not scored
        (0.9, "light", False, "light", (1, 0)),
        (0.9, "light", True, "light", (2, 0)),
    ],
    ids=["deferred", "light attempt", "waits for the light model"],
)
async def test_restart_continues_request_at_its_stage(
    folder: Path, confidence: float, held: str, waits: bool, model: str, orders: tuple[int, int]
) -> None:
    async with running_parts(folder, confidence) as parts:
        worker = parts.heavy if held == "heavy" else parts.light
        worker.hold.clear()
        async with running_suite(folder, **parts.settings) as suite:
            await suite.wait_for_workers(2)
            streams = [suite.client.generate(UNNAMED)] if waits else []
            for other in streams:
                await suite.accepted(other)
                await worker.wait_until(lambda: worker.running)
            stream = suite.client.generate(UNNAMED, "key")
            request_id = await suite.accepted(stream)
            await worker.wait_until(lambda: worker.running)

        async with running_suite(folder, **parts.settings) as successor:
            worker.hold.set()
            last = await ended(successor, request_id)

    provenance = last.provenance
    assert (provenance.spec.model, provenance.model_digest) == (model, f"sha256:{model}")
    assert (len(parts.light.executed), len(parts.heavy.executed)) == orders
    assert len(parts.discriminator.asked) == orders[0]
    if model == "light":
        assert (provenance.spec.num_inference_steps, provenance.discriminator_confidence) == (2, 0.9)
