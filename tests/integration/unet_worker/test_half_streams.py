"""Half streams of a worker: how many there are at once, and what becomes of them when it takes another model."""

import asyncio
from itertools import count

import torch

from pentimento.clients.guidance_half import GuidanceHalfClient, HalfStream, HalfStreamRequest
from pentimento.domain.generation import Attempt
from pentimento.tensors.device import outgoing_tensor
from pentimento.testing.checkpoints import SIDE_PX, TOKENS, WIDTH
from pentimento.wire.tensors import UNBOUND
from tests.integration.unet_worker.conftest import Served

OPEN_S = 20.0
_numbers = count(1)


async def opened(worker: Served) -> HalfStream:
    """A stream of a half of a picture of its own."""
    half = HalfStreamRequest(
        attempt=Attempt(f"h{next(_numbers)}", 1, 1, "frontdoor", 1, "tenant"),
        model_digest=worker.held.model_digest,
        width_px=SIDE_PX,
        height_px=SIDE_PX,
        step_count=20,
        states=outgoing_tensor(torch.zeros(1, TOKENS, WIDTH), UNBOUND),
    )
    return await GuidanceHalfClient(worker.channel).open_stream(half, 1, OPEN_S)


async def test_every_credit_is_a_half_though_nobody_tells_callers_apart(worker: Served) -> None:
    streams = await asyncio.gather(*(opened(worker) for _ in range(8)))

    assert worker.model.halves.open_count == worker.process.worker.credits().credit_count == 8
    for stream in streams:
        stream.close()
