"""Serve the real contracts with answers scripted by tests, and open servers and channels for them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder
from pentimento.api.embedder.v1 import embedder_service_pb2_grpc as embedder_grpc
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.api.worker.v1 import unet_worker_service_pb2_grpc as worker_grpc
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, open_channel
from pentimento.rpc.settings import BOUNDS, ServerBounds

EMBEDDER = "pentimento.api.embedder.v1.EmbedderService"
WORKER = "pentimento.api.worker.v1.UnetWorkerService"
EMBED_TEXT = f"/{EMBEDDER}/EmbedText"


async def echo(request: embedder.EmbedTextRequest) -> str:
    return ",".join(request.texts)


async def no_credits(request: worker.WatchCreditsRequest) -> AsyncIterator[worker.WatchCreditsResponse]:
    return
    yield


@dataclass
class Embedder(embedder_grpc.EmbedderServiceServicer):
    """Answer EmbedText with the result of `embed`, as the encoder digest; GetInfo is not implemented."""

    embed: Callable[[embedder.EmbedTextRequest], Awaitable[str]] = echo

    async def EmbedText(self, request: embedder.EmbedTextRequest, context: object) -> embedder.EmbedTextResponse:
        return embedder.EmbedTextResponse(embeddings=[embedder.Embedding(encoder_digest=await self.embed(request))])

    async def EmbedImage(self, request: embedder.EmbedImageRequest, context: object) -> embedder.EmbedImageResponse:
        return embedder.EmbedImageResponse(embeddings=[embedder.Embedding(values=image) for image in request.images])


@dataclass
class Worker(worker_grpc.UnetWorkerServiceServicer):
    """Stream the values of `credits` from WatchCredits; PredictHalf refuses its first message with `refusal`."""

    credits: Callable[[worker.WatchCreditsRequest], AsyncIterator[worker.WatchCreditsResponse]] = no_credits
    refusal: PentimentoError = field(default_factory=lambda: InvalidArgument.of("open", "is refused"))

    async def WatchCredits(
        self, request: worker.WatchCreditsRequest, context: object
    ) -> AsyncIterator[worker.WatchCreditsResponse]:
        async for one in self.credits(request):
            yield one

    async def PredictHalf(
        self, requests: AsyncIterator[worker.PredictHalfRequest], context: object
    ) -> AsyncIterator[worker.PredictHalfResponse]:
        await anext(requests)
        raise self.refusal
        yield


@dataclass
class Scripted:
    """Hold a started server and its servicers; `address` is its first address."""

    server: RpcServer
    embedder: Embedder = field(default_factory=Embedder)
    worker: Worker = field(default_factory=Worker)

    @property
    def address(self) -> str:
        return self.server.bound_addresses[0]


def scripted(settings: RpcServerSettings, bounds: ServerBounds = BOUNDS, *, takes_turns: bool = False) -> Scripted:
    """Add both servicers to a server without starting it."""
    made = Scripted(RpcServer(settings, "scripted", takes_turns=takes_turns, bounds=bounds))
    made.server.add(embedder_grpc.add_EmbedderServiceServicer_to_server, made.embedder, EMBEDDER)
    made.server.add(worker_grpc.add_UnetWorkerServiceServicer_to_server, made.worker, WORKER)
    return made


@asynccontextmanager
async def serving(
    settings: RpcServerSettings, bounds: ServerBounds = BOUNDS, *, takes_turns: bool = False
) -> AsyncIterator[Scripted]:
    """Start such a server, and yield it once it is SERVING."""
    made = scripted(settings, bounds, takes_turns=takes_turns)
    await made.server.start()
    made.server.set_serving()
    try:
        yield made
    finally:
        await made.server.stop()


def embedder_stub(channel: grpc.aio.Channel) -> "embedder_grpc.EmbedderServiceAsyncStub":
    return embedder_grpc.EmbedderServiceStub(channel)


def worker_stub(channel: grpc.aio.Channel) -> "worker_grpc.UnetWorkerServiceAsyncStub":
    return worker_grpc.UnetWorkerServiceStub(channel)


def channel_to(
    target: Scripted, settings: RpcChannelSettings | None = None, token: str | None = None
) -> grpc.aio.Channel:
    return open_channel(target.address, settings or RpcChannelSettings(), token)


async def embed(channel: grpc.aio.Channel, *texts: str, **options: object) -> str:
    """Call EmbedText with the texts, and return the scripted answer."""
    answer = await embedder_stub(channel).EmbedText(embedder.EmbedTextRequest(texts=texts), **options)
    return answer.embeddings[0].encoder_digest
