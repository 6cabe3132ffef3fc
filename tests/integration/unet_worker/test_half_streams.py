"""Test half streams of a worker: their limit, and their end when it switches to another model."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.fixtures.checkpoints import SIDE_PX, TOKENS, WIDTH, write_checkpoint
from lab.fixtures.step_streams import answer_to
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.calls import domain_errors
from pentimento.clients.guidance_half import GuidanceHalfClient, HalfStream, HalfStreamRequest
from pentimento.domain.errors import PentimentoError, ResourceExhausted, Unavailable
from pentimento.domain.generation import Attempt
from pentimento.domain.weights import SwitchWay
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.tensors.regions import RegionDirectory
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.models.loaded import LoadedModel
from services.unet_worker.remote import halves_servicer
from services.unet_worker.remote.halves_servicer import HalfServicer, Requests
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.test_switching import credits_where, engines, take

OPEN_S = 120.0
LATENT = outgoing_tensor(torch.zeros(1, 4, SIDE_PX // 4, SIDE_PX // 4), UNBOUND)
_numbers = count(1)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "other", prediction_type="epsilon")


async def opened(worker: Served, directory: RegionDirectory | None = None) -> HalfStream:
    """Open a stream for one half of a new image."""
    half = HalfStreamRequest(
        attempt=Attempt(f"h{next(_numbers)}", 1, 1, "frontdoor", 1, "tenant"),
        model_digest=worker.held.model_digest,
        width_px=SIDE_PX,
        height_px=SIDE_PX,
        step_count=20,
        states=outgoing_tensor(torch.zeros(1, TOKENS, WIDTH), UNBOUND),
    )
    return await GuidanceHalfClient(worker.channel, directory).open_stream(half, 1, OPEN_S)


async def test_anonymous_callers_may_use_every_credit(worker: Served) -> None:
    streams = await asyncio.gather(*(opened(worker) for _ in range(8)))

    assert worker.model.halves.open_count == worker.process.worker.credits().credit_count == 8
    for stream in streams:
        stream.close()


async def test_concurrent_halves_never_exceed_credits(
    checkpoint: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_called, opening = asyncio.Barrier(2), halves_servicer._opening

    async def opening_of_both(messages: Requests) -> pb.OpenHalf:
        await both_called.wait()
        return await opening(messages)

    monkeypatch.setattr(halves_servicer, "_opening", opening_of_both)
    async with serve(checkpoint, directory, credits=1) as worker:
        answers = await asyncio.gather(opened(worker), opened(worker), return_exceptions=True)

        assert {type(answer) for answer in answers} == {HalfStream, ResourceExhausted}


async def test_half_opened_during_drain_is_refused(worker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = halves_servicer._opening

    async def opening_and_draining(messages: Requests) -> pb.OpenHalf:
        message = await opening(messages)
        await worker.process.worker.drain()
        return message

    monkeypatch.setattr(halves_servicer, "_opening", opening_and_draining)

    with pytest.raises(PentimentoError) as refused:
        await opened(worker)

    assert refused.value.reason == "NO_CREDIT"


async def stepped(worker: Served) -> HalfStream:
    stream = await opened(worker)
    await answer_to(stream, 0, 900.0, LATENT)
    return stream


async def lined(worker: Served) -> HalfStream:
    """Open a stream with steps on a line, which the engine's thread reads."""
    stream = await opened(worker, worker.model.halves._halves.directory)
    assert stream.lined
    await answer_to(stream, 0, 900.0, LATENT)
    return stream


@pytest.mark.parametrize("begun", [opened, stepped, lined])
async def test_halves_end_with_their_model_and_let_go_of_it_before_the_next_one_is_loaded(
    checkpoint: Path,
    other: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: Callable[[Served], Awaitable[HalfStream]],
) -> None:
    (directory / "shared").mkdir(mode=0o700)
    settings: dict[str, Any] = {"other_models": (other,), "shared_memory_dir": str(directory / "shared")}
    async with serve(checkpoint, directory, **settings) as worker:
        stream, gone, load = await begun(worker), [], worker.switch._loader.load
        model = weakref.ref(worker.model.halves._halves._model)

        async def loading(*given: Any) -> LoadedModel:
            gone.append(model() is None)
            return await load(*given)

        take(SwitchWay.UNLOAD_FIRST, monkeypatch)
        monkeypatch.setattr(worker.switch._loader, "load", loading)
        monkeypatch.setattr(halves_servicer, "LET_GO_S", 60.0)  # a busy machine ends a stream late
        worker.switch.assign("other", 8)
        await credits_where(worker, served=True, model="other")

        with pytest.raises(Unavailable) as ended:
            await answer_to(stream, 1, 800.0, LATENT)
        assert ended.value.reason == "DRAINING"
        assert gone == [True]


async def test_unopened_half_ends_with_the_model(
    checkpoint: Path, other: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, called = halves_servicer._opening, asyncio.Event()

    async def noticed(messages: Requests) -> pb.OpenHalf:
        called.set()
        return await opening(messages)

    monkeypatch.setattr(halves_servicer, "_opening", noticed)
    async with serve(checkpoint, directory, other_models=(other,)) as worker:
        call = UnetWorkerServiceStub(worker.channel).PredictHalf()
        await called.wait()
        worker.switch.assign("other", 8)

        with pytest.raises(Unavailable), domain_errors():
            await call.read()


async def test_worker_closed_during_halves_leaves_no_engine(
    checkpoint: Path, other: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = asyncio.Event()

    async def let_go(halves: HalfServicer) -> None:
        ending.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(HalfServicer, "let_go", let_go)
    engines_before = engines()
    async with serve(checkpoint, directory, other_models=(other,)) as worker:
        worker.switch.assign("other", 8)
        await ending.wait()

    async with asyncio.timeout(120):
        while engines() - engines_before:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)
