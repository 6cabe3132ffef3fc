"""Test the worker's contract over the wire: credits, broken streams, cancels, invalid messages."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.domain.errors import (
    Aborted,
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    Unavailable,
)
from pentimento.domain.execution import AttemptResult, Started
from pentimento.domain.fleet import Capability
from pentimento.rpc import error_from_rpc
from pentimento.tensors.cuda import tensor_over
from pentimento.wire.tensors import tensor_from_proto
from services.unet_worker import process
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import SPEC, attempt, execute, route, spec_with
from tests.support.calls import result_of

LONG = spec_with(num_inference_steps=900)


async def started(worker: Served, **options: Any) -> AsyncIterator[Any]:
    events = execute(worker, **options)
    assert isinstance(await anext(events), Started)
    return events


async def test_first_credits_name_held_models_at_once(worker: Served) -> None:
    credits = await anext(worker.client.watch_credits("frontdoor", 1))

    assert (credits.credit_count, credits.reserve_count, credits.preparing_count) == (8, 2, 2)
    assert (credits.running_count, credits.queued_count, credits.draining) == (0, 0, False)
    assert credits.held == worker.held
    assert credits.capabilities == {
        Capability.LATENT_START,
        Capability.IMAGE_START,
        Capability.PREVIEW,
        Capability.STEP_BATCHING,
        Capability.CONTROLNET,
        Capability.LATENT_PARALLEL,
    }


async def test_credits_follow_attempts_as_they_come_and_go(worker: Served) -> None:
    feed = worker.client.watch_credits("frontdoor", 1)
    await anext(feed)
    events = await started(worker, spec=LONG)

    busy = await next_where(feed, lambda credits: credits.attempts)
    await worker.client.cancel("request", 1)
    idle = await next_where(feed, lambda credits: not credits.attempts)

    assert (busy.attempts[0].request_id, busy.attempts[0].fencing_token) == ("request", 1)
    assert idle.credit_count == 8
    with pytest.raises(Cancelled):
        await result_of(events)


async def test_credits_of_another_frontdoor_leave_its_attempts_alone(worker: Served) -> None:
    own, others = (worker.client.watch_credits(name, 1) for name in ("frontdoor", "other"))
    await anext(own)
    assert (await anext(others)).credit_count == 8
    events = await started(worker, spec=LONG)

    seen = await next_where(others, lambda credits: credits.credit_count == 4)

    assert seen.attempts == ()
    assert (await next_where(own, lambda credits: credits.attempts)).attempts[0].request_id == "request"
    await worker.client.cancel("request", 1)
    with pytest.raises(Cancelled):
        await result_of(events)


async def next_where(feed: AsyncIterator[Any], wanted: Any) -> Any:
    async for message in feed:
        if wanted(message):
            return message
    raise AssertionError("the stream ended")


async def test_credits_of_an_old_epoch_end_when_a_newer_one_comes(worker: Served) -> None:
    old = worker.client.watch_credits("frontdoor", 1)
    await anext(old)
    await anext(worker.client.watch_credits("frontdoor", 2))

    with pytest.raises(Aborted):
        await next_where(old, lambda credits: False)


async def test_draining_worker_reports_it_and_refuses_attempts(worker: Served) -> None:
    feed = worker.client.watch_credits("frontdoor", 1)
    await anext(feed)
    await worker.process.drain()

    credits = await next_where(feed, lambda credits: credits.draining)

    assert credits.credit_count == 0
    with pytest.raises(Unavailable):
        await result_of(execute(worker))


async def test_cancel_stops_the_steps_and_the_next_request_succeeds(worker: Served) -> None:
    events = await started(worker, spec=LONG)

    assert await worker.client.cancel("request", 1)

    with pytest.raises(Cancelled):
        await result_of(events)
    assert isinstance(await result_of(execute(worker, attempt=attempt(2))), AttemptResult)
    assert (await worker.client.status()).completed_count == 1


async def test_frontdoor_of_newer_epoch_fetches_lost_results(worker: Served) -> None:
    whole = await result_of(execute(worker, attempt=attempt(1, "reference")))
    events: Any = await started(worker)
    await events.aclose()

    fetched = await result_of(worker.client.attach("request", 1, "frontdoor", 2))

    assert fetched.image == whole.image


async def test_worker_refuses_unknown_attempts_and_generations(worker: Served) -> None:
    with pytest.raises(NotFound):
        await result_of(worker.client.attach("nobody", 1, "frontdoor", 1))
    with pytest.raises(FailedPrecondition):
        await result_of(worker.client.execute(attempt(), SPEC, route(worker), worker.held.worker_generation + 1))
    with pytest.raises(PentimentoError):
        await answers(worker, pb.ExecuteRequest())
    answer = await UnetWorkerServiceStub(worker.channel).Prefetch(pb.PrefetchRequest(components=["other"]))
    assert list(answer.resident_components) == ["tiny"]


async def test_orphan_is_stopped_after_its_time(
    checkpoint: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ORPHAN_S", 0.0)
    async with serve(checkpoint, directory) as worker:
        feed = worker.client.watch_credits("frontdoor", 1)
        events: Any = await started(worker, spec=LONG)
        await events.aclose()

        await next_where(feed, lambda credits: not credits.attempts)

        with pytest.raises(NotFound):
            await result_of(worker.client.attach("request", 1, "frontdoor", 1))


def request_of(worker: Served, spec: dict[str, Any] | None = None, **changes: Any) -> pb.ExecuteRequest:
    request = pb.ExecuteRequest(worker_generation=worker.held.worker_generation)
    request.attempt.request_id = worker.prefix + "request"
    request.route.start.noise.SetInParent()
    request.route.model, request.route.model_digest = "tiny", worker.held.model_digest
    values = {"model": "tiny", "width_px": 32, "height_px": 32, "num_inference_steps": 4, "scheduler": 1}
    for name, value in {**values, **(spec or {})}.items():
        setattr(request.spec, name, value)
    for name, value in changes.items():
        setattr(request, name, value)
    return request


async def answers(worker: Served, request: pb.ExecuteRequest) -> list[pb.ExecuteResponse]:
    try:
        return [answer async for answer in UnetWorkerServiceStub(worker.channel).Execute(request)]
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "spec",
    [{"width_px": 0}, {"guidance_scale": math.nan}, {"scheduler": 0}, {"scheduler": 77}, {"prompt": "x" * 10_001}],
)
async def test_bad_fields_are_refused_and_the_next_good_request_succeeds(
    shared_worker: Served, spec: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument):
        await answers(shared_worker, request_of(shared_worker, spec))

    assert (await answers(shared_worker, request_of(shared_worker)))[-1].result.image


async def test_final_latents_are_returned_on_request(worker: Served) -> None:
    result = (await answers(worker, request_of(worker, return_latents=True)))[-1].result

    latents = tensor_over(tensor_from_proto(result.final_latents, dims=(1, 4, 8, 8)))

    assert latents.abs().max() > 0
    assert result.final_latents.binding.request_id == "request"


async def test_half_without_opening_is_refused(worker: Served) -> None:
    async def nothing() -> AsyncIterator[pb.PredictHalfRequest]:
        yield pb.PredictHalfRequest()

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in UnetWorkerServiceStub(worker.channel).PredictHalf(nothing()):
            pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_worker_without_warm_up_time_measures_batches_while_idle(
    checkpoint: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="services.unet_worker.models.loaded")

    async with serve(checkpoint, directory, warm_up_s=0.0, max_batch=4) as served:
        told_before = caplog.text
        async with asyncio.timeout(120):
            while "a batch of 4 was measured" not in caplog.text:  # noqa: ASYNC110 - the engine's thread says it
                await asyncio.sleep(0.01)
        credits = served.process.worker.credits().credit_count

    assert "batches of 2, 4 are measured while idle" in told_before
    assert credits == 4
