import asyncio
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.cache import Neighbour
from pentimento.domain.errors import FailedPrecondition, Internal, InvalidArgument, Unavailable
from pentimento.domain.generation import Donor, FromLatent, FromNoise, ObjectReference
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.policies.thinning import ThinningMode
from pentimento.profiles.document import profiles_to_json
from pentimento.profiles.rules import ThresholdRule
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache
from tests.support.profiles import STEPS_PROFILE, changed, thinned_row

FIFTY = ImageRequest(prompt="a red circle", num_inference_steps=50, seed=1)
LATENT = FromLatent(
    ObjectReference("latents/x", "sha256:0", 2048), 15, 50, 4.5, Donor("entry", "sha256:1", 0.91, ancestor_depth=2)
)
# Generous on a busy machine; what is tested is that a wait ends, not how long it is.
WAITS = {"embed_timeout_ms": 20_000, "lookup_timeout_ms": 20_000, "reserve_timeout_ms": 20_000}


@pytest.fixture
def embedder() -> ChosenEmbedder:
    return ChosenEmbedder()


@pytest.fixture
async def gateway() -> ChosenGateway:
    return ChosenGateway()


@asynccontextmanager
async def cached_suite(
    folder: Path, embedder: ChosenEmbedder, gateway: ChosenGateway, **settings: Any
) -> AsyncIterator[FrontdoorSuite]:
    address = f"unix:{folder / 'c'}"
    server = await serve_cache(embedder, gateway, address)
    async with running_suite(
        folder, embedder_address=address, gateway_address=address, **{**WAITS, **settings}
    ) as suite:
        yield suite
    await server.stop()


@pytest.fixture
async def cached(
    folder: Path, worker: PacedWorker, embedder: ChosenEmbedder, gateway: ChosenGateway
) -> AsyncIterator[FrontdoorSuite]:
    async with cached_suite(folder, embedder, gateway) as running:
        yield running


async def test_a_hit_starts_where_the_gateway_says(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    gateway.start = LATENT

    completed = await cached.paint(FIFTY)

    assert completed.provenance.route.start == LATENT
    assert worker.orders[0].route.start.latent.resume_step == 15


@pytest.mark.parametrize(("taken_count", "is_noise"), [(34, True), (35, False)])
async def test_a_latent_that_leaves_more_steps_than_a_thinned_picture_takes_is_passed_over(
    folder: Path,
    worker: PacedWorker,
    embedder: ChosenEmbedder,
    gateway: ChosenGateway,
    taken_count: int,
    is_noise: bool,
) -> None:
    """The latent leaves 35 of 50."""
    gateway.start, rule = LATENT, ThresholdRule.MINIMUM
    about = {"model": "tiny", "model_digest": "sha256:model", "guidance_scale": 3.0, "rule": rule}
    profile = changed(STEPS_PROFILE, **about, rows=(thinned_row(0, taken_count, rule),))
    (folder / "thin.json").write_text(profiles_to_json(profile))
    thinning = {"thinning": ThinningMode.ALWAYS, "profiles": (folder / "thin.json",)}
    async with cached_suite(folder, embedder, gateway, **thinning) as suite:
        route = (await suite.paint(replace(FIFTY, num_inference_steps=None))).provenance.route

    told = f"from noise: thinned it takes {taken_count} steps, from the nearest latent 35"
    assert (route.start == FromNoise(), route.reason == told) == (is_noise, is_noise)


async def test_a_start_that_was_taken_is_told_to_the_gateway(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.start = LATENT

    await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.reported)

    assert [(one.key, one.from_image, one.taken) for one in gateway.reported] == [("latents/x", False, True)]
    assert not gateway.bad


async def test_a_picture_from_noise_tells_the_gateway_nothing(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed)

    assert not gateway.reported


async def test_a_start_that_the_worker_could_not_use_counts_as_none(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    gateway.start = LATENT
    worker.passes_over = "OBJECT_MISSING"
    before = REGISTRY.get_sample_value("pentimento_frontdoor_starts_total", {"start": "passed_over"}) or 0.0

    completed = await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.reported and gateway.bad and gateway.committed)

    route = completed.provenance.route
    assert (route.start, completed.provenance.steps_saved) == (FromNoise(), 0)
    assert route.reason == "from noise: OBJECT_MISSING; planned: as the test chose"
    assert [(one.key, one.taken) for one in gateway.reported] == [("latents/x", False)]
    assert gateway.bad[0].key == "latents/x"
    # Painted from noise, it has no ancestor.
    assert gateway.committed[0].ancestor_depth == 0
    after = REGISTRY.get_sample_value("pentimento_frontdoor_starts_total", {"start": "passed_over"})
    assert after == before + 1


async def test_the_scope_of_a_lookup_holds_all_that_changes_the_picture(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    for request in (FIFTY, replace(FIFTY, scheduler="euler"), replace(FIFTY, eta=0.5), replace(FIFTY, width_px=64)):
        await cached.paint(request)

    scopes = [candidate.scope for lookup in gateway.lookups for candidate in lookup.candidates]
    assert scopes[0].tenant == "default"
    assert len({scope.SerializeToString(deterministic=True) for scope in scopes}) == 4


async def test_what_an_accepted_attempt_captured_is_committed(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    await cached.paint(FIFTY)

    await gateway.wait_until(lambda: gateway.committed)

    assert [latent.resume_step for latent in gateway.committed[0].entries.latents] == [5, 10, 15, 20, 25]
    assert gateway.committed[0].ancestor_depth == 0
    assert not gateway.released


async def test_a_hit_captures_what_lies_after_its_start(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.start = LATENT

    await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed)

    assert gateway.reserved[0].start_step == 15
    assert gateway.reserved[0].ancestor_depth == 3
    assert [latent.resume_step for latent in gateway.committed[0].entries.latents] == [20, 25]
    assert gateway.committed[0].ancestor_depth == 3


async def test_a_kept_image_is_committed_with_its_embedding(
    cached: FrontdoorSuite, gateway: ChosenGateway, embedder: ChosenEmbedder
) -> None:
    gateway.keeps_images = True

    completed = await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed)

    assert embedder.images == [completed.image]
    assert gateway.committed[0].entries.image.key == "images/x"
    assert struct.unpack("<2f", gateway.committed[0].image_embedding.values) == (0.0, 1.0)


async def test_an_image_that_cannot_be_embedded_leaves_the_latents_alone(
    cached: FrontdoorSuite, gateway: ChosenGateway, embedder: ChosenEmbedder
) -> None:
    gateway.keeps_images = True
    embedder.image_error = Unavailable("DOWN", "this part is down")

    await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed)

    assert len(gateway.committed[0].entries.latents) == 5
    assert not gateway.committed[0].entries.HasField("image")


async def test_behind_an_encoder_of_texts_alone_no_picture_is_kept_any_more(
    cached: FrontdoorSuite, gateway: ChosenGateway, embedder: ChosenEmbedder
) -> None:
    gateway.keeps_images = True
    embedder.image_error = FailedPrecondition("NO_IMAGE_TOWER", "texts only")

    for number in range(3):
        await cached.paint(replace(FIFTY, seed=number))
        await gateway.wait_until(lambda: len(gateway.committed) > number)  # noqa: B023 - awaited within the round

    assert [one.keeps_image for one in gateway.reserved] == [True, False, False]
    # The first told it; the double keeps images in its grants all the same, and none is sent to the encoder.
    assert embedder.image_calls == 1
    assert not any(one.entries.HasField("image") for one in gateway.committed)


async def test_a_failed_attempt_gives_its_grant_back(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    worker.fail_with = Internal("NAN_IN_LATENT", "step 2 gave NaN")

    with pytest.raises(Internal):
        await cached.paint(FIFTY)

    await gateway.wait_until(lambda: gateway.released)
    assert not gateway.committed


OTHER_ENCODER = InvalidArgument.of("encoder_digest", "must be sha256:old, whose vectors the cache holds")


async def test_a_grant_whose_commit_is_refused_is_given_back(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.commit_error = OTHER_ENCODER

    await cached.paint(FIFTY)

    await gateway.wait_until(lambda: gateway.released)
    assert gateway.released == [gateway.committed[0].grant_id]


async def test_a_grant_stays_where_nobody_knows_whether_it_was_committed(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    gateway.commit_error = Unavailable("STORE_UNAVAILABLE", "the ledger went away in a commit")
    skipped = {"stage": "commit", "reason": "unavailable"}
    before = REGISTRY.get_sample_value("pentimento_frontdoor_cache_skips_total", skipped) or 0.0

    await cached.paint(FIFTY)
    async with asyncio.timeout(60):
        while REGISTRY.get_sample_value("pentimento_frontdoor_cache_skips_total", skipped) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert not gateway.released


async def test_every_attempt_has_a_grant_of_its_own_and_one_is_committed(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    worker.fail_with = Unavailable("BROKEN", "the device was lost")

    completed = await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed and gateway.released)

    tokens = [reserve.attempt.fencing_token for reserve in gateway.reserved]
    assert (completed.provenance.attempt_number, len(tokens)) == (2, 2)
    assert gateway.released == [f"grant-{tokens[0]}"]
    assert gateway.committed[0].grant_id == f"grant-{tokens[1]}"


@pytest.mark.parametrize(
    ("mode", "looked_up", "reserved"), [(CacheMode.OFF, 0, 0), (CacheMode.READ, 1, 0), (CacheMode.READ_WRITE, 1, 1)]
)
async def test_the_cache_does_what_the_request_allows(
    cached: FrontdoorSuite, gateway: ChosenGateway, mode: CacheMode, looked_up: int, reserved: int
) -> None:
    await cached.paint(replace(FIFTY, cache=mode))

    assert (len(gateway.lookups), len(gateway.reserved)) == (looked_up, reserved)


async def test_the_shared_pool_is_asked_for_by_name(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    await cached.paint(FIFTY)
    await cached.paint(replace(FIFTY, cache=CacheMode.SHARED))

    assert [lookup.candidates[0].scope.shared_pool for lookup in gateway.lookups] == [False, True]


DOWN = Unavailable("DOWN", "this part is down")


@pytest.mark.parametrize("part", ["embedder", "gateway"])
async def test_a_part_that_is_down_costs_the_cache_and_not_the_picture(
    cached: FrontdoorSuite, embedder: ChosenEmbedder, gateway: ChosenGateway, part: str
) -> None:
    broken = embedder if part == "embedder" else gateway
    broken.error = DOWN

    completed = await cached.paint(FIFTY)

    assert isinstance(completed, Completed)
    assert completed.provenance.route.start == FromNoise()
    assert f"cache skipped: {part} unavailable" in completed.provenance.notes


async def test_what_the_gateway_refuses_is_told_apart_from_one_that_is_down(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    gateway.error = OTHER_ENCODER

    completed = await cached.paint(FIFTY)

    assert completed.provenance.notes == ("cache skipped: gateway refused",)


@pytest.mark.parametrize(
    ("part", "waits"),
    [("embedder", {"embed_timeout_ms": 50}), ("gateway", {"lookup_timeout_ms": 50, "reserve_timeout_ms": 50})],
)
async def test_a_part_that_never_answers_costs_the_cache_and_not_the_picture(
    folder: Path,
    worker: PacedWorker,
    embedder: ChosenEmbedder,
    gateway: ChosenGateway,
    part: str,
    waits: dict[str, int],
) -> None:
    broken = embedder if part == "embedder" else gateway
    broken.hangs = True

    # Only the part that hangs is not waited for: on a busy machine the other one may take longer than that.
    async with cached_suite(folder, embedder, gateway, **waits) as impatient:
        completed = await impatient.paint(FIFTY)

    assert isinstance(completed, Completed)
    assert completed.provenance.route.start == FromNoise()
    assert f"cache skipped: {part} slow" in completed.provenance.notes


async def test_cache_parts_that_are_not_there_cost_the_cache_and_not_the_picture(
    folder: Path, worker: PacedWorker
) -> None:
    gone = f"unix:{folder / 'nobody'}"

    async with running_suite(folder, embedder_address=gone, gateway_address=gone, **WAITS) as suite:
        completed = await suite.paint(REQUEST)

    assert "cache skipped: embedder unavailable" in completed.provenance.notes


async def test_explain_shows_the_hit_without_reserving(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.start = LATENT

    explanation = await cached.client.explain(FIFTY)

    assert explanation.route.start == LATENT
    assert not gateway.reserved


async def test_explain_tells_the_nearest_entries_where_it_is_asked_to(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    gateway.neighbours = (Neighbour("near", 0.91, False, (5, 10), 1, 1000, "r-1"), Neighbour("far", 0.2, True))

    explanation = await cached.client.explain(FIFTY, neighbour_count=7)
    without = await cached.client.explain(FIFTY)

    assert explanation.neighbours == gateway.neighbours
    assert without.neighbours == ()
    (asked,) = gateway.looked_around
    assert (asked.limit_count, asked.candidate) == (7, gateway.lookups[0].candidates[0])


async def test_explain_does_without_neighbours_where_the_gateway_has_none(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    gateway.error = Unavailable("DOWN", "the gateway is down")

    assert (await cached.client.explain(FIFTY, neighbour_count=7)).neighbours == ()


async def test_more_neighbours_than_there_may_be_are_refused_by_name(cached: FrontdoorSuite) -> None:
    with pytest.raises(InvalidArgument, match="neighbour_count: must be between 0 and 50, got 51"):
        await cached.client.explain(FIFTY, neighbour_count=51)


async def test_status_tells_where_pictures_started_and_how_long_they_took(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    before = await cached.operator.status()
    gateway.start = LATENT
    await cached.paint(FIFTY)
    gateway.start = FromNoise()
    await cached.paint(FIFTY)

    status = await cached.operator.status()

    starts = [(start.kind, start.saved_steps, start.image_count) for start in status.starts]
    assert starts == [("latent", 15, 1), ("noise", 0, 1)]
    assert (status.steps_run, status.steps_saved) == (85, 15)
    assert sum(bucket.request_count for bucket in status.latencies) == 2 + sum(
        bucket.request_count for bucket in before.latencies
    )
    assert status.latencies[-1].upper_bound_s == math.inf
    (pool,) = status.pools
    assert (pool.arrived_count, pool.completed_count, pool.late_count) == (2, 2, 0)
