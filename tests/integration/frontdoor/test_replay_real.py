"""Replays give the same image bit by bit: a real frontdoor, a worker with a tiny model's weights, a real gateway. The
embedder is a double that returns one vector for all prompts, so that all allowed starts are reused."""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.domain.errors import NotFound
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, Start
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest, ReplayRequest
from pentimento.domain.replay import ancestor_of
from pentimento.stores.objects import open_objects
from pentimento.supervisor.models import find_model
from services.frontdoor.requests.pins import ROW_BYTES
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache
from tests.integration.unet_worker.conftest import serve
from tests.support.calls import last_completed
from tests.support.gateways import RunningGateway, running_gateway

FIRST = ImageRequest("a red circle", num_inference_steps=10, seed=1)
SECOND = ImageRequest("a red circle at the top", num_inference_steps=10, seed=2)
# Without guidance, the last bits of an image depend on the requests in its forward passes.
PLAIN = replace(FIRST, guidance_scale=1.0)
HOUR_MS = 3_600_000
LATENTS = ("--max-entries", "1")
IMAGES = ("--max-entries", "1", "--thresholds", "image:0.3:0.4")
# Long enough for a busy machine: the tests compare images, not times.


class OneVector(ChosenEmbedder):
    """Return one vector for all prompts and images."""

    async def EmbedImage(self, request: embedder_pb.EmbedImageRequest, context: Any) -> embedder_pb.EmbedImageResponse:
        values = struct.pack("<2f", 1.0, 0.0)
        vectors = [
            embedder_pb.Embedding(values=values, dimension_count=2, encoder_digest="sha256:encoder")
            for _ in request.images
        ]
        return embedder_pb.EmbedImageResponse(embeddings=vectors)


@asynccontextmanager
async def real_suite(folder: Path, *flags: str) -> AsyncIterator[tuple[FrontdoorSuite, RunningGateway]]:
    objects, address = f"file://{folder / 'objects'}", f"unix:{folder / 'c'}"
    embedder = await serve_cache(OneVector(), ChosenGateway(), address)
    async with (
        serve(find_model("tiny-light").path, folder),
        running_gateway(folder / "g", "--objects-url", objects, *flags) as gateway,
        running_suite(
            folder,
            worker_addresses=(f"unix:{folder / 'w'}",),
            embedder_address=(address,),
            gateway_address=gateway.process.server.bound_addresses[0],
        ) as suite,
    ):
        yield suite, gateway
    await embedder.stop()


async def replay(suite: FrontdoorSuite, request_id: str, **options: Any) -> Completed:
    return await last_completed(suite.client.replay(ReplayRequest(request_id, **options)))


async def hit(suite: FrontdoorSuite, gateway: RunningGateway, second: ImageRequest = SECOND) -> Completed:
    """Generate one image, and another request that starts from its entry."""
    await suite.paint(FIRST)
    await suite.frontdoor.jobs.finish_tasks()
    while isinstance((await suite.client.explain(SECOND)).route.start, FromNoise):
        await asyncio.to_thread(gateway.process.indexing.index_new)
    return await suite.paint(second)


async def evict(suite: FrontdoorSuite, gateway: RunningGateway, *keys: str) -> None:
    """Generate requests without reuse until another entry has the only place in the cache, and the objects are
    swept."""
    negative_prompts = (f"number {number}" for number in itertools.count())
    while kept(suite.folder).intersection(keys):
        await suite.paint(replace(FIRST, width_px=32, height_px=32, negative_prompt=next(negative_prompts)))
        await suite.frontdoor.jobs.finish_tasks()
        await asyncio.to_thread(gateway.maintain)


def kept(folder: Path) -> set[str]:
    """Return the keys of the cache's objects in the store."""
    store = open_objects(f"file://{folder / 'objects'}")
    return set(store.keys("cache/"))


async def test_replay_from_noise_in_shared_batches(folder: Path) -> None:
    async with real_suite(folder) as (suite, _):
        first = await suite.paint(PLAIN)
        others = [asyncio.ensure_future(suite.paint(replace(PLAIN, seed=seed))) for seed in range(2, 6)]

        again = await replay(suite, first.request_id)

        await asyncio.gather(*others)
    assert again.image == first.image and again.provenance.replay_equal
    assert again.provenance.model_digest == first.provenance.model_digest


@pytest.mark.parametrize(("flags", "kind"), [(LATENTS, FromLatent), (IMAGES, FromImage)])
async def test_replay_from_cache_until_its_object_is_deleted(
    folder: Path, flags: tuple[str, ...], kind: type[Start]
) -> None:
    async with real_suite(folder, *flags) as (suite, gateway):
        first = await hit(suite, gateway)
        ancestor = ancestor_of(first.provenance.route.start)
        assert isinstance(first.provenance.route.start, kind) and first.provenance.steps_saved and ancestor
        await suite.frontdoor.jobs.finish_tasks()
        before = kept(folder)
        assert ancestor.key in before

        again = await replay(suite, first.request_id)
        await suite.frontdoor.jobs.finish_tasks()

        assert again.image == first.image and again.provenance.replay_equal
        assert again.provenance.route.start == first.provenance.route.start
        assert again.provenance.steps_saved == first.provenance.steps_saved
        assert kept(folder) == before
        with pytest.raises(NotFound) as refused:
            [event async for event in suite.frontdoor.api.replay("other", ReplayRequest(first.request_id))]
        assert refused.value.reason == "UNKNOWN_REQUEST"

        await evict(suite, gateway, ancestor.key)
        with pytest.raises(NotFound) as gone:
            await replay(suite, first.request_id)
    assert gone.value.reason == "ANCESTOR_GONE" and first.request_id in gone.value.message


@pytest.mark.parametrize(("flags", "kind"), [((), FromLatent), (IMAGES[2:], FromImage)])
async def test_seeds_of_a_prompt_differ_and_a_repeated_seed_does_not(
    folder: Path, flags: tuple[str, ...], kind: type[Start]
) -> None:
    asked = [replace(FIRST, seed=seed) for seed in (1, 2, 3)]
    async with real_suite(folder, *flags) as (suite, gateway):
        await hit(suite, gateway, replace(FIRST, cache=CacheMode.READ))

        first = [await suite.paint(one) for one in asked]
        await suite.frontdoor.jobs.finish_tasks()
        again = [await suite.paint(one) for one in asked]
        several = [
            event.image
            async for event in suite.client.generate(replace(FIRST, seed=4, image_count=3))
            if isinstance(event, Completed)
        ]

    # A step is added to four fifths of K = 5, or of K = 4; the first request's own start is stored as it was.
    made = [(type(one.provenance.route.start), one.provenance.steps_run) for one in first[1:]]
    assert made == [(kind, 6 if kind is FromLatent else 7)] * 2
    assert [one.image for one in again] == [one.image for one in first]
    assert len({one.image for one in first} | set(several)) == 6


@pytest.mark.parametrize("asked_at_once", [True, False])
async def test_pinned_image_is_replayed_after_eviction_of_its_entry(folder: Path, asked_at_once: bool) -> None:
    async with real_suite(folder, *LATENTS) as (suite, gateway):
        first = await hit(suite, gateway, replace(SECOND, pin_ms=HOUR_MS) if asked_at_once else SECOND)
        ancestor = ancestor_of(first.provenance.route.start)
        assert ancestor is not None and first.provenance.notes == ()
        if not asked_at_once:
            pinned = await suite.client.pin(first.request_id, HOUR_MS)
            assert pinned.size_bytes == ancestor.size_bytes + ROW_BYTES
        others = kept(folder) - {ancestor.key}

        await evict(suite, gateway, *others)

        assert ancestor.key in kept(folder) and gateway.problems() == []
        again = await replay(suite, first.request_id)
        assert again.image == first.image and again.provenance.replay_equal
        assert again.provenance.steps_saved == first.provenance.steps_saved > 0

        await suite.client.unpin(first.request_id)
        await asyncio.to_thread(gateway.maintain)
        assert ancestor.key not in kept(folder)
        with pytest.raises(NotFound) as gone:
            await replay(suite, first.request_id)
        assert gone.value.reason == "ANCESTOR_GONE"
        with pytest.raises(NotFound) as late:
            await suite.client.pin(first.request_id, HOUR_MS)
        assert late.value.reason == "ANCESTOR_GONE"
        assert await asyncio.wrap_future(suite.frontdoor.journal.pins.pinned_bytes("default")) == 0
