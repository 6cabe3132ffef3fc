"""Half streams of a worker: how many there are at once, and what becomes of them when it takes another model."""

import asyncio
from itertools import count
from pathlib import Path

import pytest
import torch

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.guidance_half import GuidanceHalfClient, HalfStream, HalfStreamRequest
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.domain.generation import Attempt
from pentimento.tensors.device import outgoing_tensor
from pentimento.testing.checkpoints import SIDE_PX, TOKENS, WIDTH
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.pairing import servicer
from services.unet_worker.pairing.servicer import Requests
from tests.integration.unet_worker.conftest import Served, serve

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


async def test_halves_that_come_at_once_are_no_more_than_there_are_credits(
    checkpoint: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_called, opening = asyncio.Barrier(2), servicer._opening

    async def opening_of_both(messages: Requests) -> pb.OpenHalf:
        await both_called.wait()
        return await opening(messages)

    monkeypatch.setattr(servicer, "_opening", opening_of_both)
    async with serve(checkpoint, directory, credits=1) as worker:
        answers = await asyncio.gather(opened(worker), opened(worker), return_exceptions=True)

        assert {type(answer) for answer in answers} == {HalfStream, ResourceExhausted}


async def test_a_half_that_opens_while_the_worker_drains_is_refused(
    worker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = servicer._opening

    async def opening_and_draining(messages: Requests) -> pb.OpenHalf:
        message = await opening(messages)
        await worker.process.worker.drain()
        return message

    monkeypatch.setattr(servicer, "_opening", opening_and_draining)

    with pytest.raises(PentimentoError) as refused:
        await opened(worker)

    assert refused.value.reason == "NO_CREDIT"
