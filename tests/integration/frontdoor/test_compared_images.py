"""Compare light images with the heavy model's of the same request, as reported to plans."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.cascade import CascadeSuite, running_cascade
from lab.fixtures.frontdoor_suite import until
from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.dataplane.demand_report import DemandReport
from pentimento.domain.demand import KeptQuality
from pentimento.domain.fleet import ReplicaReport
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.online_quality import ComparedPair
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.pair_keys import PREFIX, reference_of
from pentimento.wire.codec import from_bytes
from services.frontdoor.quality import shadows as shadow_module
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache

UNNAMED = ImageRequest(prompt="a red circle", seed=1)


class TellingEmbedder(ChosenEmbedder):
    """Return a cosine of 0.6 to every text for a call's first image, of 0.8 for the others."""

    async def EmbedImage(self, request: embedder_pb.EmbedImageRequest, context: Any) -> embedder_pb.EmbedImageResponse:
        self.images.extend(request.images)
        pairs = [(0.6, 0.8), *((0.8, 0.6),) * (len(request.images) - 1)]
        packed = [struct.pack("<2f", *pair) for pair in pairs]
        digest = self.encoder_digest
        vectors = [embedder_pb.Embedding(values=one, dimension_count=2, encoder_digest=digest) for one in packed]
        return embedder_pb.EmbedImageResponse(embeddings=vectors)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "_TICK_S", 0.01)
    monkeypatch.setattr(shadow_module, "LEAST_S", 0.01)


@asynccontextmanager
async def compared(folder: Path, confidence: float, **changes: Any) -> AsyncIterator[tuple[CascadeSuite, DemandReport]]:
    address = f"unix:{folder / 'e'}"
    server = await serve_cache(TellingEmbedder(), ChosenGateway(), address)  # type: ignore[abstract]
    given = {"embedder_address": (address,), **changes}
    async with running_cascade(folder, confidence, **given) as cascade:
        frontdoor = cascade.suite.frontdoor
        yield cascade, DemandReport(frontdoor.interpreter.dataplane, frontdoor.shadows.counts)
    await server.stop()


def kept_pairs(folder: Path) -> list[ComparedPair]:
    """Return the pairs in the frontdoor's object store."""
    store = open_objects((folder / "objects").as_uri(), read_only=True)
    references = map(reference_of, store.keys(f"{PREFIX}/"))
    return [from_bytes(store.get(one), ComparedPair, pb.ComparedPair) for one in references if one is not None]


def light_parts(report: DemandReport) -> tuple[KeptQuality, ...]:
    demand = {one.model: one for one in report.added_to(ReplicaReport("f1", 1)).demand}
    return demand["light"].compared


async def test_deferred_light_image_is_compared_with_heavy_one(folder: Path) -> None:
    async with compared(folder, 0.21, deferral_sample_share=1.0) as (cascade, report):
        completed = await cascade.suite.paint(UNNAMED)
        await until(lambda: bool(light_parts(report)))
        (kept,) = [(part, one) for part, one in enumerate(light_parts(report)) if one.count]
        await until(lambda: bool(kept_pairs(folder)))

    (pair,) = kept_pairs(folder)
    assert (pair.cascade, pair.light_digest, pair.heavy_digest) == ("light>heavy", "sha256:light", "sha256:heavy")
    assert (pair.deferred, pair.confidence, pair.sampled_share) == (True, pytest.approx(0.21), 1.0)
    assert (pair.light_score, pair.heavy_score) == (pytest.approx(0.6), pytest.approx(0.8))
    assert (pair.light, pair.heavy) == (cascade.discriminator.asked[0].images[0].image, completed.image)
    assert kept[0] == 4
    assert kept[1].count == 1
    assert kept[1].kept == pytest.approx(0.75)


async def test_accepted_light_image_is_compared_on_idle_workers(folder: Path) -> None:
    quiet = {"quality_sample_share": 1.0, "quality_work_share": 1.0, "quality_quiet_s": 0.0}
    async with compared(folder, 0.96, **quiet) as (cascade, report):
        completed = await cascade.suite.paint(UNNAMED)
        await until(lambda: bool(light_parts(report)))
        (kept,) = [(part, one) for part, one in enumerate(light_parts(report)) if one.count]
        await until(lambda: bool(kept_pairs(folder)))

    (pair,) = kept_pairs(folder)
    assert (pair.cascade, pair.light_digest, pair.heavy_digest) == ("light>heavy", "sha256:light", "sha256:heavy")
    assert (pair.deferred, pair.confidence) == (False, pytest.approx(0.96))
    assert (pair.light, pair.light_score) == (completed.image, pytest.approx(0.6))
    assert completed.provenance.model_digest == "sha256:light"
    assert len(cascade.heavy.executed) == 1
    assert kept[0] == 19
    assert kept[1].count == 1
    assert kept[1].kept == pytest.approx(0.75)


async def test_images_are_not_compared_where_share_is_nothing(folder: Path) -> None:
    async with compared(folder, 0.2, deferral_sample_share=0.0) as (cascade, report):
        await cascade.suite.paint(UNNAMED)
        await cascade.suite.frontdoor.jobs.finish_tasks()

        assert light_parts(report) == ()
