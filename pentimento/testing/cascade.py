"""A frontdoor with two paced workers, light and heavy, and a discriminator that says what it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import (
    DiscriminatorServiceServicer,
    add_DiscriminatorServiceServicer_to_server,
)
from pentimento.domain.errors import FailedPrecondition, Internal
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.testing.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.testing.held_models import HELD
from pentimento.testing.paced_worker import PacedWorker, serve

DISCRIMINATOR = pb.DESCRIPTOR.services_by_name["DiscriminatorService"].full_name


class FixedDiscriminator(DiscriminatorServiceServicer):
    """Answers every image with one confidence; None for an error. With `hangs` it never answers. `foreseen`: what every
    prompt tells; None where it reads pictures alone."""

    def __init__(self, confidence: float | None) -> None:
        self.confidence = confidence
        self.digest = ""
        self.hangs = False
        self.foreseen: float | None = None
        self.asked: list[pb.ScoreRequest] = []
        self.foresights: list[pb.ForeseeRequest] = []

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        self.asked.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.confidence is None:
            raise Internal("BROKEN", "no score today")
        scores = [
            pb.ImageScore(request_id=image.request_id, fencing_token=image.fencing_token, confidence=self.confidence)
            for image in request.images
        ]
        return pb.ScoreResponse(scores=scores, discriminator_digest=self.digest)

    async def Foresee(self, request: pb.ForeseeRequest, context: Any) -> pb.ForeseeResponse:
        self.foresights.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.foreseen is None:
            raise FailedPrecondition("NO_PROMPT_HEAD", "reads pictures alone")
        verdict = pb.Verdict.VERDICT_HARD if self.foreseen < 0.05 else pb.Verdict.VERDICT_UNSURE
        told = [
            pb.PromptForesight(request_id=prompt.request_id, probability=self.foreseen, verdict=verdict)
            for prompt in request.prompts
        ]
        return pb.ForeseeResponse(foresights=told, discriminator_digest=self.digest)


class CascadeParts:
    """What a frontdoor finds, and how it is set to use it."""

    def __init__(self, folder: Path, confidence: float | None) -> None:
        self.light = PacedWorker("w1")  # type: ignore[abstract]
        self.heavy = PacedWorker("w2")  # type: ignore[abstract]
        self.light.held = replace(HELD, model="light", model_digest="sha256:light", default_steps=2)
        self.heavy.held = replace(HELD, model="heavy", model_digest="sha256:heavy", default_steps=4)
        self.discriminator = FixedDiscriminator(confidence)  # type: ignore[abstract]
        self.settings: dict[str, Any] = {
            "worker_addresses": (f"unix:{folder / 'w1'}", f"unix:{folder / 'w2'}"),
            "discriminator_addresses": (f"unix:{folder / 'd'}",),
            "cascade": ("light", "heavy"),
            "confidence_threshold": 0.5,
            "score_timeout_ms": 60_000,
        }


class CascadeSuite:
    def __init__(self, suite: FrontdoorSuite, parts: CascadeParts) -> None:
        self.suite = suite
        self.light = parts.light
        self.heavy = parts.heavy
        self.discriminator = parts.discriminator


@asynccontextmanager
async def running_parts(folder: Path, confidence: float | None) -> AsyncIterator[CascadeParts]:
    parts = CascadeParts(folder, confidence)
    async with AsyncExitStack() as stack:
        for worker in (parts.light, parts.heavy):
            server = await serve(worker, f"unix:{folder / worker.worker_id}")
            stack.push_async_callback(server.stop)
        scorer = RpcServer(RpcServerSettings(listen=(f"unix:{folder / 'd'}",)), "discriminator")
        scorer.add(add_DiscriminatorServiceServicer_to_server, parts.discriminator, DISCRIMINATOR)
        await scorer.start()
        stack.push_async_callback(scorer.stop)
        yield parts


@asynccontextmanager
async def running_cascade(folder: Path, confidence: float | None, **changes: Any) -> AsyncIterator[CascadeSuite]:
    async with (
        running_parts(folder, confidence) as parts,
        running_suite(folder, **{**parts.settings, **changes}) as suite,
    ):
        await suite.wait_for_workers(2)
        yield CascadeSuite(suite, parts)
