"""A live cascade: light first, scored, the doubtful ones painted again by the heavy model."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.cascade import running_cascade, running_parts
from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.dataplane.recording import read_recording, replay
from pentimento.domain.errors import Internal
from pentimento.domain.image_request import Completed, ImageRequest
from pentimento.domain.requests import RequestState
from tests.support.calls import last_completed

UNNAMED = ImageRequest(prompt="a red circle", seed=1)


async def test_a_confident_light_picture_is_the_answer(folder: Path) -> None:
    async with running_cascade(folder, 0.9) as cascade:
        completed = await cascade.suite.paint(UNNAMED)

    provenance = completed.provenance
    assert (provenance.model_digest, provenance.discriminator_confidence) == ("sha256:light", 0.9)
    assert provenance.spec.num_inference_steps == 2
    assert not cascade.heavy.executed
    (asked,) = cascade.discriminator.asked
    assert (asked.cascade, asked.images[0].image) == ("light>heavy", completed.image)


async def test_a_doubtful_one_is_painted_again_by_the_heavy_model(folder: Path) -> None:
    async with running_cascade(folder, 0.2) as cascade:
        completed = await cascade.suite.paint(UNNAMED)

    provenance = completed.provenance
    assert (provenance.model_digest, provenance.spec.model) == ("sha256:heavy", "heavy")
    assert [stage.model for stage in provenance.route.stages] == ["light", "heavy"]
    assert provenance.spec.num_inference_steps == 4
    assert provenance.spec.seed == cascade.light.executed[0].seed
    assert provenance.attempt_number == 2


@pytest.mark.parametrize(("light_j", "joules"), [(2.0, 5.0), (None, None)])
async def test_a_light_picture_that_was_passed_over_is_paid_for(
    folder: Path, light_j: float | None, joules: float | None
) -> None:
    """Joules are unknown when one of the devices cannot tell."""
    async with running_cascade(folder, 0.2) as cascade:
        cascade.light.device_s, cascade.light.energy_j = 0.5, light_j
        cascade.heavy.device_s, cascade.heavy.energy_j = 4.0, 3.0
        completed = await cascade.suite.paint(UNNAMED)

    assert (completed.provenance.device_seconds, completed.provenance.energy_joules) == (4.5, joules)


async def test_every_stage_of_an_attempt_is_timed_and_follows_the_one_before(folder: Path) -> None:
    async with running_cascade(folder, 0.9) as cascade:
        completed = await cascade.suite.paint(UNNAMED)

    timings = {timing.stage: timing for timing in completed.provenance.timings}
    order = ["accept", "route", "queue", "attempt", "send", "receive", "score"]
    assert [stage for stage in timings if stage in order] == order
    ends = [timings[stage].start_ms + timings[stage].duration_ms for stage in order]
    assert ends == sorted(ends)


async def test_a_request_that_names_its_model_is_painted_by_it_alone(folder: Path) -> None:
    async with running_cascade(folder, 0.2) as cascade:
        completed = await cascade.suite.paint(replace(UNNAMED, model="light"))

    assert completed.provenance.model_digest == "sha256:light"
    assert not cascade.discriminator.asked


@pytest.mark.parametrize(("accept", "digest"), [(True, "sha256:light"), (False, "sha256:heavy")])
async def test_without_a_score_the_settings_decide_and_say_so(folder: Path, accept: bool, digest: str) -> None:
    async with running_cascade(folder, None, accept_unscored=accept) as cascade:
        completed = await cascade.suite.paint(UNNAMED)

    assert completed.provenance.model_digest == digest
    assert ("degraded: UNSCORED" in completed.provenance.notes) == accept


@pytest.mark.parametrize(("accept", "digest"), [(True, "sha256:light"), (False, "sha256:heavy")])
async def test_a_discriminator_that_never_answers_is_left(folder: Path, accept: bool, digest: str) -> None:
    async with running_cascade(folder, 0.9, accept_unscored=accept, score_timeout_ms=50) as cascade:
        cascade.discriminator.hangs = True
        completed = await cascade.suite.paint(UNNAMED)

    assert completed.provenance.model_digest == digest
    assert ("degraded: UNSCORED" in completed.provenance.notes) == accept


async def test_a_picture_too_large_for_the_light_model_is_explained_and_painted_by_the_heavy_one(folder: Path) -> None:
    large = replace(UNNAMED, width_px=64, height_px=64)
    async with running_parts(folder, 0.9) as parts:
        parts.light.held = replace(parts.light.held, max_size_px=32)
        async with running_suite(folder, **parts.settings) as suite:
            await suite.wait_for_workers(2)
            explanation = await suite.client.explain(large)
            completed = await suite.paint(large)

    assert (explanation.pool, explanation.route.model) == ("heavy", "heavy")
    assert completed.provenance.model_digest == "sha256:heavy"


async def test_the_light_picture_stands_in_when_the_heavy_model_fails(folder: Path) -> None:
    async with running_cascade(folder, 0.2) as cascade:
        cascade.heavy.fail_with = Internal("NAN_IN_LATENT", "step 3")
        completed = await cascade.suite.paint(UNNAMED)

    assert completed.provenance.model_digest == "sha256:light"
    assert "degraded: NAN_IN_LATENT" in completed.provenance.notes


async def test_a_deferred_request_outlives_its_frontdoor(folder: Path) -> None:
    """The heavy attempt is attached to as what it is: its picture is not scored again."""
    async with running_parts(folder, 0.2) as parts:
        parts.heavy.hold.clear()
        async with running_suite(folder, **parts.settings) as suite:
            await suite.wait_for_workers(2)
            stream = suite.client.generate(UNNAMED, "key")
            request_id = await suite.accepted(stream)
            await parts.heavy.wait_until(lambda: parts.heavy.running)

        async with running_suite(folder, **parts.settings) as successor:
            parts.heavy.hold.set()
            last = await ended(successor, request_id)

    assert last.provenance.model_digest == "sha256:heavy"
    assert (len(parts.light.executed), len(parts.heavy.executed)) == (1, 1)
    assert len(parts.discriminator.asked) == 1


async def test_a_light_attempt_that_outlives_its_frontdoor_is_known_as_what_the_light_model_was_asked(
    folder: Path,
) -> None:
    async with running_parts(folder, 0.9) as parts:
        parts.light.hold.clear()
        async with running_suite(folder, **parts.settings) as suite:
            await suite.wait_for_workers(2)
            stream = suite.client.generate(UNNAMED, "key")
            request_id = await suite.accepted(stream)
            await parts.light.wait_until(lambda: parts.light.running)

        async with running_suite(folder, **parts.settings) as successor:
            parts.light.hold.set()
            last = await ended(successor, request_id)

    assert (last.provenance.spec.model, last.provenance.spec.num_inference_steps) == ("light", 2)


async def test_a_request_that_waits_for_the_light_model_waits_for_it_in_the_next_start_too(folder: Path) -> None:
    async with running_parts(folder, 0.9) as parts:
        parts.light.hold.clear()
        async with running_suite(folder, **parts.settings) as suite:
            await suite.wait_for_workers(2)
            first = suite.client.generate(UNNAMED)
            await suite.accepted(first)
            await parts.light.wait_until(lambda: parts.light.running)
            waiting = suite.client.generate(UNNAMED, "key")
            request_id = await suite.accepted(waiting)

        async with running_suite(folder, **parts.settings) as successor:
            parts.light.hold.set()
            last = await ended(successor, request_id)

    assert (last.provenance.spec.model, last.provenance.discriminator_confidence) == ("light", 0.9)
    assert not parts.heavy.executed


async def ended(suite: FrontdoorSuite, request_id: str) -> Completed:
    last = await last_completed(suite.client.generate(UNNAMED, "key"))
    assert last.request_id == request_id
    assert (await suite.client.get_request(request_id)).state is RequestState.COMPLETED
    return last


async def test_what_was_recorded_replays_to_the_same_effects(folder: Path) -> None:
    path = folder / "effects.jsonl"
    async with running_cascade(folder, 0.2, record_effects=str(path)) as cascade:
        await cascade.suite.paint(UNNAMED)
        await cascade.suite.paint(UNNAMED)

    lines = path.read_text().splitlines()
    dataplane, steps = read_recording(lines, "effects.jsonl")
    count, divergence = replay(dataplane, steps)

    assert divergence is None
    assert count == len(lines) - 1 > 20
