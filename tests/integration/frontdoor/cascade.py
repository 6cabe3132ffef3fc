"""A frontdoor with two paced workers, light and heavy, and a discriminator that says what it is told."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pentimento.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.discriminator.v1.discriminator_service_pb2_grpc import (
    DiscriminatorServiceServicer,
    add_DiscriminatorServiceServicer_to_server,
)
from pentimento.domain.errors import Internal
from pentimento.rpc import RpcServer, RpcServerSettings
from tests.integration.frontdoor.paced_worker import PacedWorker, serve
from tests.integration.frontdoor.suite import Suite, running_suite
from tests.unit.frontdoor.models import HELD

DISCRIMINATOR = pb.DESCRIPTOR.services_by_name["DiscriminatorService"].full_name


class FixedDiscriminator(DiscriminatorServiceServicer):
    """Answers every image with one confidence; None for an error."""

    def __init__(self, confidence: float | None) -> None:
        self.confidence = confidence
        self.asked: list[pb.ScoreRequest] = []

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        self.asked.append(request)
        if self.confidence is None:
            raise Internal("BROKEN", "no score today")
        scores = [
            pb.ImageScore(request_id=image.request_id, fencing_token=image.fencing_token, confidence=self.confidence)
            for image in request.images
        ]
        return pb.ScoreResponse(scores=scores)


class Cascade:
    def __init__(self, suite: Suite, light: PacedWorker, heavy: PacedWorker, discriminator: FixedDiscriminator) -> None:
        self.suite = suite
        self.light = light
        self.heavy = heavy
        self.discriminator = discriminator


@asynccontextmanager
async def running_cascade(folder: Path, confidence: float | None, **changes: Any) -> AsyncIterator[Cascade]:
    light, heavy = PacedWorker("w1"), PacedWorker("w2")
    light.held = replace(HELD, model="light", model_digest="sha256:light", default_steps=2)
    heavy.held = replace(HELD, model="heavy", model_digest="sha256:heavy", default_steps=4)
    discriminator = FixedDiscriminator(confidence)
    async with AsyncExitStack() as stack:
        for worker in (light, heavy):
            server = await serve(worker, f"unix:{folder / worker.worker_id}")
            stack.push_async_callback(server.stop)
        scorer = RpcServer(RpcServerSettings(listen=(f"unix:{folder / 'd'}",)), "discriminator")
        scorer.add(add_DiscriminatorServiceServicer_to_server, discriminator, DISCRIMINATOR)
        await scorer.start()
        stack.push_async_callback(scorer.stop)
        addresses = (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}")
        settings = {
            "worker_addresses": addresses,
            "discriminator_addresses": (f"unix:{folder / 'd'}",),
            "cascade": ("light", "heavy"),
            "confidence_threshold": 0.5,
            **changes,
        }
        suite = await stack.enter_async_context(running_suite(folder, **settings))
        await suite.wait_for_workers(2)
        yield Cascade(suite, light, heavy, discriminator)
