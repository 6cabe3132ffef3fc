"""Distribute calls over equal embedders, with real channels."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pentimento.api.embedder.v1.embedder_service_pb2_grpc import add_EmbedderServiceServicer_to_server
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.embedders import Embedders
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, Unavailable
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, open_channel
from tests.integration.frontdoor.cache_parts import EMBEDDER, ChosenEmbedder


class CountingEmbedder(ChosenEmbedder):
    """Count the calls that reach it, failed ones included."""

    def __init__(self) -> None:
        super().__init__()
        self.call_count = 0

    async def pass_by(self) -> None:
        self.call_count += 1
        await super().pass_by()


@asynccontextmanager
async def serving(address: str) -> AsyncIterator[CountingEmbedder]:
    server, embedder = RpcServer(RpcServerSettings(listen=(address,)), "embedder"), CountingEmbedder()
    server.add(add_EmbedderServiceServicer_to_server, embedder, EMBEDDER)
    await server.start()
    server.set_serving()
    try:
        yield embedder
    finally:
        await server.stop()


@pytest.fixture
async def three(folder: Path) -> AsyncIterator[list[CountingEmbedder]]:
    async with serving(at(folder, 0)) as one, serving(at(folder, 1)) as two, serving(at(folder, 2)) as third:
        yield [one, two, third]


def at(folder: Path, number: int) -> str:
    return f"unix:{folder}/e{number}"


def embedders(folder: Path, planned: int) -> Embedders:
    made = Embedders(lambda address: EmbedderClient(open_channel(address, RpcChannelSettings())), [at(folder, 0)])
    made.follow([at(folder, number) for number in range(planned)])
    return made


async def test_same_text_goes_to_same_embedder(folder: Path, three: list[CountingEmbedder]) -> None:
    asked = embedders(folder, 3)
    for _ in range(4):
        await asked.embed_text(["a cat"])
    assert sorted(one.call_count for one in three) == [0, 0, 4]

    for number in range(30):
        await asked.embed_text([f"a cat {number}"])
    assert all(one.call_count for one in three)


async def test_simultaneous_calls_are_distributed_evenly(folder: Path, three: list[CountingEmbedder]) -> None:
    for one in three:
        one.hangs = True
    asked = embedders(folder, 3)

    calls = [asyncio.create_task(asked.embed_text(["a cat"])) for _ in range(6)]
    async with asyncio.timeout(120):
        while sum(one.call_count for one in three) < 6:  # noqa: ASYNC110 - the calls run in tasks
            await asyncio.sleep(0.01)

    assert [one.call_count for one in three] == [2, 2, 2]
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert not asked._replicas.running


async def test_missing_embedder_costs_no_embedding(folder: Path, three: list[CountingEmbedder]) -> None:
    asked = embedders(folder, 3)
    for number in (1, 2):
        three[number].error = Unavailable("DRAINING", "it is stopping")

    for number in range(10):
        assert await asked.embed_text([f"a cat {number}"])

    assert three[0].call_count == 10


async def test_embedder_leaving_plan_during_call_costs_no_embedding(
    folder: Path, three: list[CountingEmbedder]
) -> None:
    asked = embedders(folder, 3)

    class LeavingEmbedder(EmbedderClient):
        """The removed embedder is missing, and before this is known, the plan names neither it nor the other removed
        one."""

        async def embed_text(self, *arguments: Any, **options: Any) -> tuple[Embedding, ...]:
            asked.follow([at(folder, 0)])
            raise Unavailable("DRAINING", "it is stopping")

    for number in (1, 2):
        asked._replicas.clients[at(folder, number)] = LeavingEmbedder(
            open_channel(at(folder, number), RpcChannelSettings())
        )
    asked._replicas.running[at(folder, 0)] = 1

    assert await asked.embed_text(["a cat"])


async def test_invalid_input_fails_without_retry(folder: Path, three: list[CountingEmbedder]) -> None:
    for one in three:
        one.error = InvalidArgument.of("texts", "too long")
    with pytest.raises(InvalidArgument):
        await embedders(folder, 3).embed_text(["a cat"])
    assert sum(one.call_count for one in three) == 1


async def test_embedder_outside_the_plan_is_not_called(folder: Path, three: list[CountingEmbedder]) -> None:
    await embedders(folder, 0).embed_text(["a cat"])
    assert [one.call_count for one in three] == [1, 0, 0]

    asked = embedders(folder, 3)
    asked.follow([at(folder, 0)])
    for number in range(10):
        await asked.embed_text([f"a cat {number}"])
    assert [one.call_count for one in three] == [11, 0, 0]


async def test_text_encoder_receives_one_image(folder: Path, three: list[CountingEmbedder]) -> None:
    asked, encoder = embedders(folder, 0), three[0]
    await asked.embed_text(["a cat"])
    encoder.image_error = FailedPrecondition("ANOTHER_REASON", "not this one")
    with pytest.raises(FailedPrecondition):
        await asked.embed_image([b"image"])
    assert asked.embeds_images
    before = encoder.image_calls

    encoder.image_error = FailedPrecondition("NO_IMAGE_TOWER", "texts only")
    for _ in range(3):
        with pytest.raises(FailedPrecondition, match="texts only"):
            await asked.embed_image([b"image"])
    assert (encoder.image_calls - before, asked.embeds_images) == (1, False)

    encoder.image_error, encoder.encoder_digest = None, "sha256:another"
    await asked.embed_text(["a cat"])
    assert len(await asked.embed_image([b"image"])) == 1
