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

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.cache import Neighbour
from pentimento.domain.errors import FailedPrecondition, Internal, InvalidArgument, PentimentoError, Unavailable
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

DOWN = Unavailable("DOWN", "this part is down")
OTHER_ENCODER = InvalidArgument.of("encoder_digest", "must be sha256:old, whose vectors the cache holds")


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
    async with running_suite(folder, embedder_address=(address,), gateway_address=address, **settings) as suite:
        yield suite
    await server.stop()


@pytest.fixture
async def cached(
    folder: Path, worker: PacedWorker, embedder: ChosenEmbedder, gateway: ChosenGateway
) -> AsyncIterator[FrontdoorSuite]:
    async with cached_suite(folder, embedder, gateway) as running:
        yield running


async def test_hit_starts_at_latent_and_captures_later_steps(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    gateway.start = LATENT
    assert (await cached.client.explain(FIFTY)).route.start == LATENT
    assert not gateway.reserved

    completed = await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.reported and gateway.committed)

    assert completed.provenance.route.start == LATENT
    assert worker.orders[0].route.start.latent.resume_step == 15
    assert [(one.key, one.from_image, one.taken) for one in gateway.reported] == [("latents/x", False, True)]
    assert not gateway.bad
    assert (gateway.reserved[0].start_step, gateway.reserved[0].ancestor_depth) == (15, 3)
    assert [latent.resume_step for latent in gateway.committed[0].entries.latents] == [20, 25]
    assert gateway.committed[0].ancestor_depth == 3


@pytest.mark.parametrize(("taken_count", "is_noise"), [(34, True), (35, False)])
async def test_latent_is_skipped_if_thinned_image_needs_fewer_steps(
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
    # An image from noise has no ancestor.
    assert gateway.committed[0].ancestor_depth == 0
    after = REGISTRY.get_sample_value("pentimento_frontdoor_starts_total", {"start": "passed_over"})
    assert after == before + 1


async def test_lookup_scope_contains_every_field_that_changes_the_image(
    cached: FrontdoorSuite, gateway: ChosenGateway
) -> None:
    for request in (FIFTY, replace(FIFTY, scheduler="euler"), replace(FIFTY, eta=0.5), replace(FIFTY, width_px=64)):
        await cached.paint(request)

    scopes = [candidate.scope for lookup in gateway.lookups for candidate in lookup.candidates]
    assert scopes[0].tenant == "default"
    assert len({scope.SerializeToString(deterministic=True) for scope in scopes}) == 4


@pytest.mark.parametrize("embedded", [True, False])
async def test_kept_image_is_committed_with_its_embedding(
    cached: FrontdoorSuite, gateway: ChosenGateway, embedder: ChosenEmbedder, embedded: bool
) -> None:
    gateway.keeps_images = True
    embedder.image_error = None if embedded else DOWN

    completed = await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed)

    (committed,) = gateway.committed
    assert [latent.resume_step for latent in committed.entries.latents] == [5, 10, 15, 20, 25]
    assert committed.ancestor_depth == 0
    assert not gateway.released and not gateway.reported
    assert committed.entries.HasField("image") is embedded
    if embedded:
        assert embedder.images == [completed.image]
        assert committed.entries.image.key == "images/x"
        assert struct.unpack("<2f", committed.image_embedding.values) == (0.0, 1.0)


async def test_encoder_without_images_ends_storage_of_images(
    cached: FrontdoorSuite, gateway: ChosenGateway, embedder: ChosenEmbedder
) -> None:
    gateway.keeps_images = True
    embedder.image_error = FailedPrecondition("NO_IMAGE_TOWER", "texts only")

    for number in range(3):
        await cached.paint(replace(FIFTY, seed=number))
        await gateway.wait_until(lambda: len(gateway.committed) > number)  # noqa: B023 - awaited within the round

    assert [one.keeps_image for one in gateway.reserved] == [True, False, False]
    # The first answer revealed it; the double still grants images, and none is sent to the encoder.
    assert embedder.image_calls == 1
    assert not any(one.entries.HasField("image") for one in gateway.committed)


async def test_failed_attempt_releases_its_grant(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    worker.fail_with = Internal("NAN_IN_LATENT", "step 2 gave NaN")

    with pytest.raises(Internal):
        await cached.paint(FIFTY)

    await gateway.wait_until(lambda: gateway.released)
    assert not gateway.committed


async def test_grant_with_refused_commit_is_released(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.commit_error = OTHER_ENCODER

    await cached.paint(FIFTY)

    await gateway.wait_until(lambda: gateway.released)
    assert gateway.released == [gateway.committed[0].grant_id]


async def test_grant_with_unknown_commit_is_not_released(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.commit_error = Unavailable("STORE_UNAVAILABLE", "the ledger went away in a commit")
    skipped = {"stage": "commit", "reason": "unavailable"}
    before = REGISTRY.get_sample_value("pentimento_frontdoor_cache_skips_total", skipped) or 0.0

    await cached.paint(FIFTY)
    async with asyncio.timeout(60):
        while REGISTRY.get_sample_value("pentimento_frontdoor_cache_skips_total", skipped) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert not gateway.released


async def test_each_attempt_has_a_grant_and_one_is_committed(
    cached: FrontdoorSuite, gateway: ChosenGateway, worker: PacedWorker
) -> None:
    worker.fail_with = Unavailable("BROKEN", "the device was lost")

    completed = await cached.paint(FIFTY)
    await gateway.wait_until(lambda: gateway.committed and gateway.released)

    tokens = [reserve.attempt.fencing_token for reserve in gateway.reserved]
    assert (completed.provenance.attempt_number, len(tokens)) == (2, 2)
    assert gateway.released == [f"grant-{tokens[0]}"]
    assert gateway.committed[0].grant_id == f"grant-{tokens[1]}"


async def test_cache_mode_decides_lookup_and_reservation(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    counts = []
    for mode in (CacheMode.OFF, CacheMode.READ, CacheMode.READ_WRITE, CacheMode.SHARED):
        await cached.paint(replace(FIFTY, cache=mode))
        counts.append((len(gateway.lookups), len(gateway.reserved)))

    assert counts[:3] == [(0, 0), (1, 0), (2, 1)]
    shared = [lookup.candidates[0].scope.shared_pool for lookup in gateway.lookups]
    assert shared == [False, False, True]


@pytest.mark.parametrize(
    ("part", "error", "note"),
    [
        ("embedder", DOWN, "embedder unavailable"),
        ("gateway", DOWN, "gateway unavailable"),
        ("gateway", OTHER_ENCODER, "gateway refused"),
    ],
)
async def test_cache_part_that_fails_leaves_image_from_noise(
    cached: FrontdoorSuite,
    embedder: ChosenEmbedder,
    gateway: ChosenGateway,
    part: str,
    error: PentimentoError,
    note: str,
) -> None:
    (embedder if part == "embedder" else gateway).error = error

    completed = await cached.paint(FIFTY)

    assert completed.provenance.route.start == FromNoise()
    assert f"cache skipped: {note}" in completed.provenance.notes
    assert error is DOWN or len(completed.provenance.notes) == 1


@pytest.mark.parametrize(
    ("part", "factor"),
    # On a busy machine a slow embedder, with its longer limit, must not hide a hanging gateway.
    [("embedder", 0.2), ("gateway", 10.0)],
)
async def test_hanging_cache_part_costs_only_the_cache(
    folder: Path,
    worker: PacedWorker,
    embedder: ChosenEmbedder,
    gateway: ChosenGateway,
    part: str,
    factor: float,
) -> None:
    broken = embedder if part == "embedder" else gateway
    broken.hangs = True

    async with cached_suite(folder, embedder, gateway, part_wait_factor=factor) as impatient:
        completed = await impatient.paint(FIFTY)

    assert isinstance(completed, Completed)
    assert completed.provenance.route.start == FromNoise()
    assert f"cache skipped: {part} slow" in completed.provenance.notes


async def test_explain_lists_requested_neighbours(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
    gateway.neighbours = (Neighbour("near", 0.91, False, (5, 10), 1, 1000, "r-1"), Neighbour("far", 0.2, True))

    explanation = await cached.client.explain(FIFTY, neighbour_count=7)
    without = await cached.client.explain(FIFTY)
    with pytest.raises(InvalidArgument, match="neighbour_count: must be between 0 and 50, got 51"):
        await cached.client.explain(FIFTY, neighbour_count=51)

    assert explanation.neighbours == gateway.neighbours
    assert without.neighbours == ()
    (asked,) = gateway.looked_around
    assert (asked.limit_count, asked.candidate.scope) == (7, gateway.lookups[0].candidates[0].scope)
    assert asked.candidate.latents and asked.candidate.images
    gateway.error = DOWN
    assert (await cached.client.explain(FIFTY, neighbour_count=7)).neighbours == ()


async def test_status_counts_starts_and_durations_of_images(cached: FrontdoorSuite, gateway: ChosenGateway) -> None:
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
