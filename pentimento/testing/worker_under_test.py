"""A worker process that a benchmark starts itself and asks over gRPC."""

import asyncio
import io
import itertools
import math

import grpc.aio
import numpy as np
import torch
from PIL import Image

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.domain.generation import Attempt, FromNoise, GenerationSpec, InitImage, Route
from pentimento.testing.diffusers_reference import Case, DiffusersReference
from pentimento.testing.worker_process import START_S
from pentimento.wire.generation import attempt_to_proto, route_to_proto, spec_to_proto
from pentimento.wire.tensors import tensor_from_proto
from pentimento.wire.torch_tensors import tensor_from_wire


class WorkerUnderTest:
    """A worker that serves, asked for its final latents."""

    def __init__(self, channel: grpc.aio.Channel, held: pb.HeldModel) -> None:
        self._stub = UnetWorkerServiceStub(channel)
        self.held = held
        self._numbers = itertools.count(1)

    async def latents(self, case: Case, image: Image.Image) -> torch.Tensor:
        held, number = self.held, next(self._numbers)
        attempt = Attempt(f"golden-{number}", 1, number, "golden", 1, "golden")
        request = pb.ExecuteRequest(
            attempt=attempt_to_proto(attempt),
            spec=spec_to_proto(spec_of(case, held, image)),
            route=route_to_proto(Route("golden", FromNoise(), held.model, held.model_digest)),
            worker_generation=held.worker_generation,
            return_latents=True,
        )
        answers = [answer async for answer in self._stub.Execute(request)]
        return tensor_from_wire(tensor_from_proto(answers[-1].result.final_latents))


async def difference(worker: WorkerUnderTest, reference: DiffusersReference, case: Case) -> float | None:
    """Largest absolute difference of an element, infinite when ours is not finite; None when diffusers' is not."""
    image = noise_image(worker.held.default_width_px, worker.held.default_height_px)
    theirs = reference.latents(case, image)
    if not theirs.isfinite().all():
        return None
    distance = (await worker.latents(case, image) - theirs).abs().max().item()
    return distance if math.isfinite(distance) else math.inf


def spec_of(case: Case, held: pb.HeldModel, image: Image.Image) -> GenerationSpec:
    mask = mask_png_of(case, image) if case.masked else b""
    return GenerationSpec(
        prompt=case.prompt,
        negative_prompt=case.negative_prompt,
        model=held.model,
        width_px=image.width,
        height_px=image.height,
        num_inference_steps=case.steps,
        guidance_scale=case.guidance_scale,
        scheduler=case.scheduler,
        seed=case.seed,
        eta=case.eta,
        init_image=None if case.strength is None else InitImage(png_of(image), case.strength, mask),
    )


def mask_png_of(case: Case, image: Image.Image) -> bytes:
    mask = case.mask(image.width, image.height)
    if case.alpha_mask:
        alpha = mask.point([255 * (level < 128) for level in range(256)])
        mask = Image.merge("LA", (Image.new("L", mask.size), alpha))
    return png_of(mask)


def noise_image(width_px: int, height_px: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png_of(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


async def await_serving(channel: grpc.aio.Channel) -> pb.GetStatusResponse:
    """The worker answers its status once its model is warm."""
    stub = UnetWorkerServiceStub(channel)
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=START_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.2)
