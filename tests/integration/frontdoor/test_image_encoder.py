"""Test a frontdoor with one embedder for texts and one for images, with answers set by the test."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.domain.cache import Neighbour
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.generation import FromNoise
from tests.integration.frontdoor.cache_parts import ChosenEmbedder, ChosenGateway, serve_cache
from tests.integration.frontdoor.test_cache import FIFTY

CLIP, SENTENCES = "sha256:clip", "sha256:encoder"
DOWN = Unavailable("DOWN", "this part is down")
OTHER_ENCODER = InvalidArgument.of("image_embedding.encoder_digest", "must be sha256:old")


class ClipEmbedder(ChosenEmbedder):
    """Return vectors of three dimensions for prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_digest = CLIP
        self.space = "image"

    async def EmbedText(self, request: embedder_pb.EmbedTextRequest, context: Any) -> embedder_pb.EmbedTextResponse:
        await super().EmbedText(request, context)
        values = struct.pack("<3f", 0.0, 0.0, 1.0)
        vector = embedder_pb.Embedding(values=values, dimension_count=3, encoder_digest=CLIP)
        return embedder_pb.EmbedTextResponse(embeddings=[vector for _ in request.texts])


class RejectingGateway(ChosenGateway):
    """Reject images, like a cache with another encoder for images."""

    async def Commit(self, request: Any, context: Any) -> Any:
        self.commit_error = OTHER_ENCODER if request.HasField("image_embedding") else None
        return await super().Commit(request, context)


@pytest.fixture
def texts() -> ChosenEmbedder:
    return ChosenEmbedder()


@pytest.fixture
def images() -> ClipEmbedder:
    return ClipEmbedder()


@pytest.fixture
async def gateway() -> ChosenGateway:
    made = ChosenGateway()
    made.keeps_images = True
    return made


@asynccontextmanager
async def suite_of_two(
    folder: Path, texts: ChosenEmbedder, images: ChosenEmbedder, gateway: ChosenGateway, **settings: Any
) -> AsyncIterator[FrontdoorSuite]:
    first, second = f"unix:{folder / 'c'}", f"unix:{folder / 'i'}"
    servers = [await serve_cache(texts, gateway, first), await serve_cache(images, ChosenGateway(), second)]
    given = {"embedder_address": (first, second), "gateway_address": first}
    async with running_suite(folder, **{**given, **settings}) as suite:
        yield suite
    for server in servers:
        await server.stop()


@pytest.mark.parametrize("order", [("c", "i"), ("i", "c")])
async def test_prompt_is_embedded_by_both_and_image_by_its_own_encoder(
    folder: Path,
    worker: PacedWorker,
    texts: ChosenEmbedder,
    images: ClipEmbedder,
    gateway: ChosenGateway,
    order: tuple[str, str],
) -> None:
    gateway.neighbours = (Neighbour("one", 0.75, by_image=False),)
    addresses = tuple(f"unix:{folder / name}" for name in order)
    async with suite_of_two(folder, texts, images, gateway, embedder_address=addresses) as suite:
        completed = await suite.paint(FIFTY)
        await gateway.wait_until(lambda: gateway.committed)
        explained = await suite.client.explain(FIFTY, neighbour_count=1)

    (lookup, *_), (committed,), (near,) = gateway.lookups, gateway.committed, gateway.looked_around
    for asked in (lookup, near):
        assert (asked.text_embedding.encoder_digest, asked.image_query.encoder_digest) == (SENTENCES, CLIP)
        assert struct.unpack("<3f", asked.image_query.values) == (0.0, 0.0, 1.0)
    assert (committed.text_embedding.encoder_digest, committed.image_embedding.encoder_digest) == (SENTENCES, CLIP)
    assert (texts.images, images.images) == ([], [completed.image])
    assert explained.neighbours == gateway.neighbours


async def test_image_is_embedded_by_one_of_two_embedders_of_texts(
    folder: Path, worker: PacedWorker, texts: ChosenEmbedder, gateway: ChosenGateway
) -> None:
    other = ChosenEmbedder()
    async with suite_of_two(folder, texts, other, gateway) as suite:
        # Both are asked for their space first.
        await suite.paint(FIFTY)
        await gateway.wait_until(lambda: gateway.committed)
        completed = await suite.paint(FIFTY)
        await gateway.wait_until(lambda: len(gateway.committed) == 2)

    committed = gateway.committed[1]
    assert texts.images + other.images == [completed.image] * 2
    assert not committed.HasField("image_embedding") or committed.image_embedding.encoder_digest == SENTENCES
    assert not gateway.lookups[-1].HasField("image_query")


async def test_image_waits_for_the_statement_of_every_embedder(
    folder: Path, worker: PacedWorker, texts: ChosenEmbedder, images: ClipEmbedder, gateway: ChosenGateway
) -> None:
    images.space = ""
    async with suite_of_two(folder, texts, images, gateway) as suite:
        first = await suite.paint(FIFTY)
        await gateway.wait_until(lambda: gateway.committed)
        assert (texts.images, images.images) == ([], []), "an image of an unknown encoder is embedded by none"

        images.space = "image"
        second = await suite.paint(FIFTY)
        await gateway.wait_until(lambda: len(gateway.committed) == 2)

    assert "image reuse skipped: image_embedder unavailable" in first.provenance.notes
    assert (texts.images, images.images) == ([], [second.image])


@pytest.mark.parametrize("error", [DOWN, None], ids=["down", "hanging"])
async def test_missing_image_embedder_costs_image_reuse_alone(
    folder: Path,
    worker: PacedWorker,
    texts: ChosenEmbedder,
    images: ClipEmbedder,
    gateway: ChosenGateway,
    error: PentimentoError | None,
) -> None:
    images.error, images.image_error, images.hangs = error, DOWN, error is None
    waits = {} if error is not None else {"part_wait_factor": 8.0}
    async with suite_of_two(folder, texts, images, gateway, **waits) as suite:
        completed = await suite.paint(FIFTY)
        await gateway.wait_until(lambda: gateway.committed)

    said = "unavailable" if error is not None else "slow"
    assert f"image reuse skipped: image_embedder {said}" in completed.provenance.notes
    assert not [note for note in completed.provenance.notes if note.startswith("cache skipped")]
    assert isinstance(completed.provenance.route.start, FromNoise)
    (lookup, *_), (committed,) = gateway.lookups, gateway.committed
    assert not lookup.HasField("image_query")
    assert (lookup.text_embedding.encoder_digest, len(committed.entries.latents)) == (SENTENCES, 5)
    assert not committed.entries.HasField("image")


async def test_rejected_image_costs_the_image_alone(
    folder: Path, worker: PacedWorker, texts: ChosenEmbedder, images: ClipEmbedder
) -> None:
    gateway = RejectingGateway()
    gateway.keeps_images = True
    async with suite_of_two(folder, texts, images, gateway) as suite:
        await suite.paint(FIFTY)
        await gateway.wait_until(lambda: len(gateway.committed) == 2)

    rejected, kept = gateway.committed
    assert rejected.entries.HasField("image") and not kept.entries.HasField("image")
    assert len(kept.entries.latents) == 5
    assert gateway.released == []
