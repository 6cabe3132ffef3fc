"""Serve scripts from a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import FromNoise, GenerationSpec, Provenance, Route, Scheduler
from pentimento.domain.image_request import Completed, ImageFormat
from pentimento.rpc.server import RpcServer
from pentimento.rpc.settings import RpcServerSettings
from pentimento.sdk import RetryPolicy
from pentimento.wire.codec import encode

Script = Callable[[], AsyncIterator[pb.GenerateResponse]]
ACCEPTED = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-1"))
REPLAYED = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-1", replayed=True))
SPEC = GenerationSpec("a circle", "", "tiny", 16, 8, 20, 3.0, Scheduler.DDIM, 7)
PROVENANCE = Provenance(
    "request-1", SPEC, Route("r", FromNoise(), "tiny", "sha256:0"), "sha256:0", "w", 1, 1, 20, 0, "1"
)
COMPLETED = encode(Completed("request-1", b"image", ImageFormat.PNG, 16, 8, PROVENANCE), pb.GenerateResponse)
QUICK = RetryPolicy(tries=3, first_pause_s=0.01, max_pause_s=0.02)


@dataclass
class ScriptedImageService:
    """Play the next script at each call of Generate."""

    scripts: list[Script]
    keys: list[str] = field(default_factory=list)
    deadlines_ms: list[int] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(self, request: pb.GenerateRequest, context: object) -> AsyncIterator[pb.GenerateResponse]:
        self.keys.append(request.idempotency_key)
        self.deadlines_ms.append(request.request.deadline_ms)
        try:
            async for event in self.scripts.pop(0)():
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            # The one while it waits for the script, the other while an event is being sent.
            self.cancelled.set()
            raise

    async def _unused(self, request: object, context: object) -> None:
        raise AssertionError("not part of the script")

    async def ListModels(self, request: object, context: object) -> pb.ListModelsResponse:
        return pb.ListModelsResponse()

    Cancel = GetRequest = Explain = Replay = Pin = Unpin = _unused
    Submit = Attach = FindCell = ListRequests = GetResultUrl = GetWebhookKey = _unused


def plays(*events: pb.GenerateResponse, then: PentimentoError | None = None) -> Script:
    async def script() -> AsyncIterator[pb.GenerateResponse]:
        for event in events:
            yield event
        if then is not None:
            raise then

    return script


async def for_ever() -> AsyncIterator[pb.GenerateResponse]:
    yield ACCEPTED
    step = 0
    while True:
        step += 1
        yield pb.GenerateResponse(progress=pb.Progress(step=step, step_count=1_000_000))
        await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(service: ScriptedImageService, tmp_path: Path) -> AsyncIterator[str]:
    address = f"unix:{tmp_path}/s"
    server = RpcServer(RpcServerSettings(listen=(address,)), "frontdoor")
    server.add(add_ImageServiceServicer_to_server, service, "pentimento.api.image.v1.ImageService")
    await server.start()
    try:
        yield address
    finally:
        await server.stop()


TWO = pb.GenerateResponse(accepted=pb.Accepted(request_id="p2-x", image_request_ids=["p2-x-0", "p2-x-1"]))


def completed(index: int) -> pb.GenerateResponse:
    return encode(
        Completed(f"p2-x-{index}", b"image %d" % index, ImageFormat.PNG, 16, 8, PROVENANCE, index), pb.GenerateResponse
    )
