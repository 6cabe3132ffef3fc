"""Test shadows on idle workers, with answers of workers, embedder and gateway set by the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker, serve
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as gateway_pb
from pentimento.domain.errors import FailedPrecondition, Internal
from pentimento.domain.generation import Donor, FromImage, FromLatent, FromNoise, NoiseForm, ObjectReference
from pentimento.domain.image_request import CacheMode, ImageFormat, ImageRequest
from pentimento.domain.online_quality import AchievedQuality, ReuseQuality
from pentimento.wire.codec import encode
from services.frontdoor.metrics import SHADOWS
from services.frontdoor.quality import shadows as shadow_module
from services.frontdoor.quality.shadow_plans import ShadowPlan
from services.frontdoor.quality.shadows import MOST_HITS
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache

ACHIEVED = AchievedQuality(20, 0.9, 0.7, 0.99, 0.91, 0.5, 0.97)


class WatchingGateway(ChosenGateway):
    """Return a row of latents, and record reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[gateway_pb.ReportQualityRequest] = []
        self.rows = True

    async def GetReuseQuality(
        self, request: gateway_pb.GetReuseQualityRequest, context: Any
    ) -> gateway_pb.GetReuseQualityResponse:
        row = ReuseQuality(False, 0.4, 0.8, 0.85, 0.9, "a profile", request.model_digest, ACHIEVED)
        return gateway_pb.GetReuseQualityResponse(
            thresholds=[encode(row, generation_pb2.ReuseQuality)] if self.rows else []
        )

    async def ReportQuality(
        self, request: gateway_pb.ReportQualityRequest, context: Any
    ) -> gateway_pb.ReportQualityResponse:
        self.reports.append(request)
        return gateway_pb.ReportQualityResponse(counted=True)


FIFTY = ImageRequest("a red circle", num_inference_steps=50, seed=1)
LATENT = FromLatent(
    ObjectReference("latents/x", "sha256:0", 2048), 20, 50, 4.5, Donor("entry", "sha256:1", 0.91, ancestor_depth=1)
)
IMAGE = FromImage(
    ObjectReference("images/x", "sha256:2", 2048), 30, NoiseForm.VARIANCE_PRESERVING, Donor("entry", "sha256:3", 0.31)
)
# Generate shadows as often and as early as possible.
ALWAYS = {
    "quality_sample_share": 1.0,
    "quality_trial_share": 1.0,
    "quality_work_share": 1.0,
    "quality_quiet_s": 0.0,
}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shadows check more often than by default whether they may begin, and save for a shorter time."""
    monkeypatch.setattr(shadow_module, "_TICK_S", 0.01)
    monkeypatch.setattr(shadow_module, "LEAST_S", 0.01)


@pytest.fixture
async def gateway() -> WatchingGateway:
    found = WatchingGateway()
    found.start = LATENT
    return found


@asynccontextmanager
async def watched(
    folder: Path, gateway: WatchingGateway, embedder: ChosenEmbedder | None = None, **changes: Any
) -> AsyncIterator[FrontdoorSuite]:
    address = f"unix:{folder / 'c'}"
    server = await serve_cache(embedder or ChosenEmbedder(), gateway, address)
    given = {**ALWAYS, "embedder_address": (address,), "gateway_address": address, **changes}
    async with running_suite(folder, **given) as suite:
        yield suite
    await server.stop()


def shadows(worker: PacedWorker) -> list[Any]:
    return [order for order in worker.orders if order.attempt.request_id.startswith("shadow-")]


def told(outcome: str) -> float:
    return float(SHADOWS.labels(outcome)._value.get())


async def test_hit_is_generated_again_from_noise_and_reported(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    async with watched(folder, gateway) as suite:
        hit = await suite.paint(FIFTY)
        await until(lambda: bool(gateway.reports))
        await gateway.wait_until(lambda: gateway.committed or gateway.released)
        recorded = suite.frontdoor.interpreter.dataplane.state.counters

    (order,) = shadows(worker)
    assert order.route.start.WhichOneof("kind") == "noise"
    assert order.spec == worker.orders[0].spec
    assert not order.HasField("cache_grant") and not order.deadline_remaining_ms
    (report,) = gateway.reports
    assert (report.request_id, report.model_digest) == (hit.request_id, "sha256:model")
    assert (report.reference_model_digest, report.encoder_digest) == ("sha256:model", "sha256:encoder")
    assert (report.from_image, report.skipped_steps, report.step_count) == (False, 20, 50)
    # The chosen embedder's image embeddings are orthogonal to its text embeddings.
    assert (report.similarity, report.quality, report.scratch_quality) == (0.91, 0.0, 0.0)
    # A shadow is no request, and leaves nothing.
    assert (recorded.accepted, recorded.completed) == (1, 1)
    assert len(gateway.reserved) == len(gateway.committed) + len(gateway.released) == 1


async def test_latent_hit_is_named_by_encoder_of_texts_and_scored_by_encoder_of_images(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    texts, images, address = ChosenEmbedder(), ChosenEmbedder(), f"unix:{folder / 'i'}"
    texts.image_error, images.encoder_digest = FailedPrecondition("NO_IMAGE_TOWER", "texts only"), "sha256:clip"
    images.space = "image"
    server = await serve_cache(images, ChosenGateway(), address)
    async with watched(folder, gateway, texts, embedder_address=(f"unix:{folder / 'c'}", address)) as suite:
        await suite.paint(FIFTY)
        await until(lambda: bool(gateway.reports))
    await server.stop()

    (report,) = gateway.reports
    assert (report.encoder_digest, report.from_image) == ("sha256:encoder", False)
    assert (report.quality, report.scratch_quality) == (0.0, 0.0)
    assert texts.image_calls == 0 and images.image_calls > 0


async def test_worker_of_an_image_receives_its_own_generation(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    """The model's description comes from the worker that reported last."""
    async with watched(folder, gateway, quality_sample_share=0.0) as suite:
        hit = (await suite.paint(FIFTY)).provenance
        others = replace(worker.held, worker_generation=worker.held.worker_generation + 1)
        plan = ShadowPlan("default", hit, ImageFormat.PNG, hit.spec, others, 1.0)
        painter, token = suite.frontdoor.shadows.painter, suite.frontdoor.interpreter.dataplane.state.first_token

        generated = await painter.paint(painter.begin("w1", "default", token), plan, 60.0)

    assert generated.worker_generation == worker.held.worker_generation


async def test_request_does_not_wait_for_a_shadow(folder: Path, worker: PacedWorker, gateway: WatchingGateway) -> None:
    """The shadow holds the worker's only slot and yields it; afterwards the hits are generated again."""
    stopped = told("stopped")
    # The stopped shadow begins again only after the request has its worker.
    async with watched(folder, gateway, quality_quiet_s=0.5) as suite:
        await suite.paint(FIFTY)
        worker.hold.clear()
        await until(lambda: bool(shadows(worker)))
        generating = asyncio.ensure_future(suite.paint(replace(FIFTY, seed=2)))
        await worker.wait_until(lambda: len(worker.orders) == 3)
        first = {request_id.split("-")[0] for request_id, _ in worker.running}
        worker.hold.set()
        second = await generating
        await until(lambda: len(gateway.reports) == 2)
        reruns = suite.frontdoor.interpreter.dataplane.state.counters.rerun

    assert first == {"r"}
    assert (second.provenance.attempt_number, reruns) == (1, 0)
    assert worker.most_running == 1
    assert told("stopped") == stopped + 1


async def test_shadow_yields_to_requests_of_another_worker(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    other = PacedWorker("w2")
    other.held = replace(other.held, model="other", model_digest="sha256:other")
    server = await serve(other, f"unix:{folder / 'w2'}")
    addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
    async with watched(folder, gateway, worker_addresses=addresses) as suite:
        await suite.wait_for_workers(2)
        # Enough that no shadow ends for its budget, however slowly requests are answered here.
        suite.frontdoor.shadows._budget.earn(shadow_module.MOST_SAVED_S)
        await suite.paint(replace(FIFTY, model="tiny"))
        worker.hold.clear()
        await until(lambda: bool(worker.running))
        stays = dict(worker.running)
        await suite.paint(replace(FIFTY, model="other", cache=CacheMode.OFF))
        await worker.wait_until(lambda: not stays.keys() & worker.running.keys())
        worker.hold.set()
    await server.stop()

    assert stays


async def test_misses_and_unsampled_hits_are_not_generated_again(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    async with watched(folder, gateway) as suite:
        hits = suite.frontdoor.shadows.hits
        gateway.start = FromNoise()
        await suite.paint(FIFTY)
        gateway.start = LATENT
        await suite.paint(replace(FIFTY, cache=CacheMode.OFF))
        assert not hits
    for share in ("quality_sample_share", "quality_trial_share"):
        gateway.trial = LATENT
        gateway.start = LATENT if share == "quality_sample_share" else FromNoise()
        async with watched(folder, gateway, **{share: 0.0}) as suite:
            await suite.paint(FIFTY)
            assert not suite.frontdoor.shadows.hits


async def test_hit_of_removed_threshold_gets_no_shadow(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    gone, gateway.rows = told("gone"), False
    async with watched(folder, gateway) as suite:
        await suite.paint(FIFTY)
        await until(lambda: told("gone") == gone + 1)

        assert not suite.frontdoor.shadows.hits
    assert not shadows(worker)


async def test_failed_shadow_is_not_retried(folder: Path, worker: PacedWorker, gateway: WatchingGateway) -> None:
    failed = told("failed")
    async with watched(folder, gateway) as suite:
        await suite.paint(FIFTY)
        worker.hold.clear()
        await until(lambda: bool(shadows(worker)))
        worker.fail_with = Internal("BROKEN", "as the test chose")
        worker.hold.set()
        await until(lambda: told("failed") == failed + 1)

        assert not suite.frontdoor.shadows.hits
    assert len(shadows(worker)) == 1 and not gateway.reports


async def test_shadows_keep_to_their_share_of_the_time(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    """With no share of the time none begins, and the number of waiting hits is bounded."""
    async with watched(folder, gateway, quality_work_share=0.0) as suite:
        waiting = suite.frontdoor.shadows
        hit = await suite.paint(FIFTY)
        for number in range(MOST_HITS + 5):
            waiting.note("default", f"r-{number}", hit.provenance)

        assert len(waiting.hits) == MOST_HITS
        assert waiting.hits[0].request_id == "r-5"
    assert not shadows(worker)


async def test_nothing_begins_while_the_frontdoor_drains(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    async with watched(folder, gateway) as suite:
        await suite.paint(FIFTY)
        worker.hold.clear()
        await until(lambda: bool(shadows(worker)))
        await suite.frontdoor.drain()
        await worker.wait_until(lambda: not worker.running)
        worker.hold.set()


async def test_trial_of_a_miss_starts_from_the_cache_and_is_reported(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    gateway.start, gateway.trial, embedder = FromNoise(), LATENT, ChosenEmbedder()
    async with watched(folder, gateway, embedder) as suite:
        worker.hold.clear()
        generating = asyncio.ensure_future(suite.paint(FIFTY))
        await worker.wait_until(lambda: bool(worker.running))
        worker.hold.set()
        missed = await generating
        # The second image of the request is another one.
        worker.picture_bytes = 10_000
        await until(lambda: bool(gateway.reports))

    (order,) = shadows(worker)
    assert order.route.start.latent.resume_step == LATENT.resume_step
    assert order.spec == worker.orders[0].spec
    (report,) = gateway.reports
    assert (report.request_id, report.skipped_steps, report.similarity) == (missed.request_id, 20, 0.91)
    assert (report.from_image, report.reference_model_digest) == (False, "sha256:model")
    # Its quality is that of the image from the cache, and the client's image is the one from noise.
    assert [len(image) for image in embedder.images[-2:]] == [10_000, len(missed.image)]


async def test_trial_from_an_image_is_reported_against_the_model_from_noise(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    gateway.start, gateway.trial = FromNoise(), replace(IMAGE, reference_model_digest="sha256:model")
    async with watched(folder, gateway) as suite:
        missed = await suite.paint(FIFTY)
        await until(lambda: bool(gateway.reports))

    (order,) = shadows(worker)
    assert order.route.start.image.start_step == 30
    (report,) = gateway.reports
    assert (report.request_id, report.from_image, report.skipped_steps) == (missed.request_id, True, 30)
    assert (report.model_digest, report.reference_model_digest, report.similarity) == (
        "sha256:model",
        "sha256:model",
        0.31,
    )


async def test_trial_of_another_pair_is_not_generated(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    gateway.start, gateway.trial = FromNoise(), replace(IMAGE, reference_model_digest="sha256:other")
    async with watched(folder, gateway) as suite:
        await suite.paint(FIFTY)
        assert not suite.frontdoor.shadows.hits


async def test_trial_without_its_start_reports_nothing(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    gateway.start, gateway.trial, gone = FromNoise(), LATENT, told("gone")
    worker.passes_over = "the object is gone"
    async with watched(folder, gateway) as suite:
        await suite.paint(FIFTY)
        await until(lambda: told("gone") == gone + 1)
    assert shadows(worker) and not gateway.reports


async def test_shadow_with_budget_runs_among_requests(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    """The suite is never quiet: an image's device seconds pay for a share of another's."""
    gateway.start, gateway.trial = FromNoise(), LATENT
    worker.credit_count, worker.device_s, stopped = 2, 1.0, told("stopped")
    async with watched(folder, gateway, quality_quiet_s=3600.0, quality_work_share=0.25) as suite:
        # A trial takes 0.6 device seconds; two images pay for 0.5.
        await suite.paint(FIFTY)
        await suite.paint(replace(FIFTY, seed=2))
        unpaid = len(shadows(worker))
        worker.step_s = 0.02
        await suite.paint(replace(FIFTY, seed=3))
        await until(lambda: any(key[0].startswith("shadow-") for key in worker.running))
        await suite.paint(replace(FIFTY, seed=4))
        await until(lambda: bool(gateway.reports))
        status = await suite.operator.status()

    assert unpaid == 0
    assert len(shadows(worker)) == 1 and told("stopped") == stopped
    assert (status.image_device_s, status.shadow_device_s) == (4.0, 1.0)


async def test_explain_reports_thresholds_and_kept_quality(
    folder: Path, worker: PacedWorker, gateway: WatchingGateway
) -> None:
    async with watched(folder, gateway) as suite:
        (row,) = (await suite.client.explain(FIFTY)).reuse_quality
    async with running_suite(folder) as suite:
        without = (await suite.client.explain(FIFTY)).reuse_quality

    assert row == ReuseQuality(False, 0.4, 0.8, 0.85, 0.9, "a profile", "sha256:model", ACHIEVED)
    assert without == ()
