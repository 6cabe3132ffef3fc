"""Send requests to a served worker, and read its answers."""

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from PIL import Image
from torch import Tensor

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.calls import domain_errors
from pentimento.domain.execution import AttemptResult, ExecuteEvent
from pentimento.domain.generation import (
    Attempt,
    CacheGrant,
    Donor,
    FromLatent,
    FromNoise,
    GenerationSpec,
    LatentSlot,
    Route,
    Scheduler,
    Start,
)
from pentimento.tensors.cuda import tensor_over
from pentimento.wire.tensors import tensor_from_proto
from tests.integration.unet_worker.conftest import Served
from tests.support.images import png_of

SPEC = GenerationSpec("a red circle", "blurred", "tiny", 32, 32, 8, 3.0, Scheduler.DDIM, seed=7)
DONOR = Donor("entry", "sha256:donor", 0.9)
GRANT = CacheGrant("grant", (LatentSlot(2, "latents/k2"), LatentSlot(5, "latents/k5")), "images/one", 60_000)


def attempt(number: int = 1, request_id: str = "request", epoch: int = 1) -> Attempt:
    return Attempt(request_id, number, number, "frontdoor", epoch, "tenant")


def route(worker: Served, start: Start | None = None, replay_of: str = "") -> Route:
    return Route("route", start or FromNoise(), "tiny", worker.held.model_digest, replay_of=replay_of)


def execute(
    worker: Served,
    *,
    start: Start | None = None,
    attempt: Attempt = attempt(),  # noqa: B008 (frozen)
    spec: GenerationSpec = SPEC,
    replay_of: str = "",
    **options: Any,
) -> AsyncIterator[ExecuteEvent]:
    ours = replace(attempt, request_id=worker.prefix + attempt.request_id)
    generated = route(worker, start, replay_of)
    return worker.client.execute(ours, spec, generated, worker.held.worker_generation, **options)


async def result_for(worker: Served, request: pb.ExecuteRequest) -> pb.AttemptResult:
    """Return the last answer to a message. Raises domain errors."""
    with domain_errors():
        *_, answer = [answer async for answer in UnetWorkerServiceStub(worker.channel).Execute(request)]
    return answer.result


def final_latents(result: pb.AttemptResult) -> Tensor:
    return tensor_over(tensor_from_proto(result.final_latents))


def from_latent(result: AttemptResult, step: int) -> FromLatent:
    """Return the start that resumes `result`'s latent before `step`."""
    captured = next(latent for latent in result.captured.latents if latent.resume_step == step)
    return FromLatent(captured.object, step, SPEC.num_inference_steps, captured.sigma, DONOR)


def size_of(image: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(image)).size


def png(width_px: int = 32, height_px: int = 32) -> bytes:
    return png_of(Image.effect_noise((width_px, height_px), 50).convert("RGB"))


def spec_with(**changes: Any) -> GenerationSpec:
    return replace(SPEC, **changes)
