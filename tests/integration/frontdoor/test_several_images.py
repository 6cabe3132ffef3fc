"""Test several images of one call: admitted together, run and answered separately, found by key and by id."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker, Running
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceStub
from pentimento.domain.errors import (
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.execution import AttemptResult
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    GenerateEvent,
    ImageFailed,
    Progress,
    ReplayRequest,
    Routed,
)
from pentimento.domain.jobs import RequestState
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.journal.records import AcceptedRequest, AcceptOutcome
from pentimento.stores.objects.store import digest_of
from pentimento.wire.codec import encode

THREE = replace(REQUEST, image_count=3, seed=2**64 - 2)
MEBIBYTE = 1 << 20
UNSEEDED = replace(REQUEST, image_count=3, seed=None)


def accepted_of(events: Sequence[GenerateEvent]) -> Accepted:
    (accepted,) = [event for event in events if isinstance(event, Accepted)]
    return accepted


def completed_of(events: Sequence[GenerateEvent]) -> dict[int, Completed]:
    return {event.image_index: event for event in events if isinstance(event, Completed)}


def unfinished(suite: FrontdoorSuite) -> int:
    return len(suite.frontdoor.jobs)


async def test_each_image_has_its_seed_id_and_events(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    accepted, *events = await suite.events(THREE)

    assert isinstance(accepted, Accepted)
    # Each image has a third of the call's ten messages a second.
    assert [order.progress_interval_ms for order in worker.orders] == [300] * 3
    ids = accepted.image_request_ids
    assert ids == tuple(f"{accepted.request_id}-{index}" for index in range(3))
    images = completed_of(events)
    assert [images[index].request_id for index in range(3)] == list(ids)
    assert [images[index].provenance.spec.seed for index in range(3)] == [2**64 - 2, 2**64 - 1, 0]
    assert len({picture.image for picture in images.values()}) == 3
    assert {event.image_index for event in events if isinstance(event, Routed)} == {0, 1, 2}
    # A quick image may end before its first step is sent.
    assert {event.image_index for event in events if isinstance(event, Progress)} <= {0, 1, 2}


async def test_image_count_draws_seeds_and_has_unknown_ids(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    accepted = accepted_of(await suite.events(UNSEEDED, idempotency_key="key"))
    seeds = {spec.seed for spec in worker.executed}
    assert len(seeds) == 3
    assert max(seeds) - min(seeds) > 2

    for made_up in (f"p999-{'0' * 32}", accepted.request_id.replace("p3", "p4"), f"{accepted.request_id}-3"):
        for call in (suite.client.get_request(made_up), suite.client.cancel(made_up)):
            with pytest.raises(NotFound):
                await call
    for other in (replace(UNSEEDED, image_count=2), replace(UNSEEDED, image_count=1), replace(REQUEST, seed=None)):
        with pytest.raises(FailedPrecondition) as caught:
            await suite.events(other, idempotency_key="key")
        assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"
    alone, *_, completed = await suite.events(replace(REQUEST, image_count=1))
    assert isinstance(completed, Completed)
    assert alone == Accepted(completed.request_id)


async def test_image_count_and_its_cost_have_limits(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    for count in (0, -1, 11, 2**62):
        with pytest.raises(InvalidArgument, match="image_count: must be between 1 and 10"):
            await suite.events(replace(REQUEST, image_count=count), idempotency_key="key")
    cost = 32 * 32 * 3 * 3
    with pytest.raises(InvalidArgument) as caught:
        await suite.events(replace(THREE, max_cost=cost - 1))

    assert not worker.executed
    assert caught.value.violations[0].field == "max_cost"
    assert f"{cost} pixel steps" in caught.value.message
    assert len(completed_of(await suite.events(replace(THREE, max_cost=cost)))) == 3


@pytest.mark.parametrize(
    ("setting", "quota"), [("queue_limit", None), ("tenant_unfinished_requests", "tenant-unfinished-requests")]
)
async def test_image_count_without_room_accepts_nothing(
    folder: Path, worker: PacedWorker, setting: str, quota: str | None
) -> None:
    async with running_suite(folder, **{setting: 2}) as suite:
        with pytest.raises(ResourceExhausted) as caught:
            await suite.events(THREE)
        status = await suite.operator.status()

        assert caught.value.metadata.get("quota") == quota
        assert ("is full" in caught.value.message) is (quota is None)
        assert (status.accepted_count, status.rejected_count, unfinished(suite)) == (0, 3, 0)
        assert not worker.executed
        assert len(completed_of(await suite.events(replace(THREE, image_count=2)))) == 2


async def test_failed_image_is_reported_and_others_complete(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.fail_with = Internal("BROKEN", "the decoder broke")

    events = await suite.events(THREE)

    (failed,) = [event for event in events if isinstance(event, ImageFailed)]
    assert failed.request_id == accepted_of(events).image_request_ids[failed.image_index]
    assert failed.error.reason == "BROKEN"
    assert {failed.image_index, *completed_of(events)} == {0, 1, 2}
    status = await suite.client.get_request(accepted_of(events).request_id)
    assert status.state is RequestState.COMPLETED
    assert status.images[failed.image_index].state is RequestState.FAILED
    assert status.images[failed.image_index].error_reason == "BROKEN"


async def test_a_client_that_leaves_cancels_all(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with aclosing(suite.client.generate(THREE)) as stream:
        request_id = await suite.accepted(stream)

    await until(lambda: not unfinished(suite))
    status = await suite.client.get_request(request_id)
    assert [status.state, *[picture.state for picture in status.images]] == [RequestState.CANCELLED] * 4


async def test_cancel_stops_all_or_one(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with aclosing(suite.client.generate(THREE)) as stream:
        accepted = await anext(stream)
        assert isinstance(accepted, Accepted)

        one = await suite.client.cancel(accepted.image_request_ids[1])
        status = await suite.client.get_request(accepted.request_id)
        rest = await suite.client.cancel(accepted.request_id)
        with pytest.raises(Cancelled):
            _ = [event async for event in stream]

    assert (one, rest) == (RequestState.CANCELLED, RequestState.CANCELLED)
    assert [picture.state.terminal for picture in status.images] == [False, True, False]
    assert not status.state.terminal


async def test_simultaneous_calls_of_one_key_are_one_request(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    streams = [suite.frontdoor.api.generate("anonymous", UNSEEDED, "key") for _ in range(3)]
    firsts = await asyncio.gather(*(anext(stream) for stream in streams))
    worker.hold.set()

    heard = [completed_of([event async for event in stream]) for stream in streams]

    assert len({first.request_id for first in firsts if isinstance(first, Accepted)}) == 1
    assert sorted(first.replayed for first in firsts if isinstance(first, Accepted)) == [False, True, True]
    assert [sorted(images) for images in heard] == [[0, 1, 2]] * 3
    assert len(worker.executed) == 3


async def test_restarted_frontdoor_finishes_images_and_knows_key(folder: Path, worker: PacedWorker) -> None:
    worker.hold.clear()
    async with running_suite(folder) as suite:
        stream = suite.client.generate(THREE, "key")
        request_id = await suite.accepted(stream)
        await worker.wait_until(lambda: worker.running)
    worker.hold.set()

    async with running_suite(folder) as suite:
        events = await suite.events(THREE, idempotency_key="key")
        status = await suite.client.get_request(request_id)

    assert accepted_of(events).request_id == request_id
    assert accepted_of(events).replayed
    assert sorted(completed_of(events)) == [0, 1, 2]
    assert [picture.completed.image if picture.completed else None for picture in status.images] == [b""] * 3
    assert len(worker.executed) == 3


async def test_retry_after_failed_journal_write_returns_all_images(
    suite: FrontdoorSuite, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other images continue: their clients stay."""
    journal, accept = suite.frontdoor.journal, suite.frontdoor.journal.accept

    def refuse_the_last(record: AcceptedRequest, *rest: Any) -> "Future[AcceptOutcome]":
        if not record.request_id.endswith("-2"):
            return accept(record, *rest)
        refused: Future[AcceptOutcome] = Future()
        refused.set_exception(StoreUnavailable("ledger", "away"))
        return refused

    monkeypatch.setattr(journal, "accept", refuse_the_last)
    with pytest.raises(Unavailable):
        await suite.events(THREE, idempotency_key="key")
    monkeypatch.setattr(journal, "accept", accept)

    events = await suite.events(THREE, idempotency_key="key")

    assert sorted(completed_of(events)) == [0, 1, 2]
    assert len(worker.executed) == 3


def large_by_seed(worker: PacedWorker, seed: int, size_bytes: int) -> None:
    """Give the images of that seed that number of bytes."""
    result_of = worker._result

    def result(running: Running) -> AttemptResult:
        made = result_of(running)
        if running.spec.seed != seed:
            return made
        image = made.image.ljust(size_bytes, b"\0")
        return replace(made, image=image, image_digest=digest_of(image))

    worker._result = result  # type: ignore[method-assign]


async def test_large_image_leaves_a_client_of_4_mib_its_others(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    """An outside client with gRPC's own limits states none: it learns that the large image exceeds them, and requests
    it by id with its limit. Our client states its limit and needs no second call."""
    large_by_seed(worker, 6, 5 * MEBIBYTE)
    three = replace(REQUEST, image_count=3, seed=5)
    async with grpc.aio.insecure_channel(suite.frontdoor.settings.rpc.listen[0]) as channel:
        stranger = ImageServiceStub(channel)
        answers = [one async for one in stranger.Generate(pb.GenerateRequest(request=encode(three, pb.ImageRequest)))]
        failed = next(one.failed for one in answers if one.WhichOneof("event") == "failed")
        asked = pb.AttachRequest(request_id=failed.request_id, max_message_bytes=4 * MEBIBYTE)
        again = [one async for one in stranger.Attach(asked)]
    ours = completed_of(await suite.events(three))

    assert {one.completed.image_index for one in answers if one.WhichOneof("event") == "completed"} == {0, 2}
    assert (failed.image_index, failed.reason) == (1, "MESSAGE_TOO_LARGE")
    assert sum(len(one.image_chunk.data) for one in again) == 5 * MEBIBYTE
    assert again[-1].completed.image_size_bytes == 5 * MEBIBYTE
    assert {index: len(event.image) for index, event in ours.items()} == {0: 256, 1: 5 * MEBIBYTE, 2: 256}


async def test_replay_of_a_large_image_comes_whole(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.picture_bytes = 5 * MEBIBYTE
    first = await suite.paint()

    *_, again = [event async for event in suite.client.replay(ReplayRequest(first.request_id))]

    assert isinstance(again, Completed)
    assert again.image == first.image
