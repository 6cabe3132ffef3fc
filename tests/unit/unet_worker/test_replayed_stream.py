"""Steps requested before earlier ones are answered keep their order, on one replica or on the next."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pentimento.clients.step_stream import StepStream
from pentimento.domain.errors import InvalidArgument, PentimentoError, ResourceExhausted, Unavailable
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from services.unet_worker import metrics
from services.unet_worker.remote import replayed_stream
from services.unet_worker.remote.replayed_stream import Patience, ReplayedStream
from services.unet_worker.remote.replicas import StreamPlace, lost

LATENTS = cast(OutgoingTensor, None)
FULL_TRIES = 5
PATIENCE = Patience(2, FULL_TRIES, 60.0, lambda cause: lost("edges", cause))
GONE = Unavailable("CONTROLNET_GONE", "gone")


class Scripted:
    """Record the requested steps, and answer from a script."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.asked: list[tuple[int, int]] = []
        self.answers: dict[int, ReceivedTensors] = {}
        self.closed: list[bool] = []
        self.heard: Any = None
        self._end: asyncio.Future[PentimentoError] = asyncio.get_running_loop().create_future()

    def answer(self, step: int, awaited_count: int = 0) -> ReceivedTensors:
        self.answers[step] = ReceivedTensors((), awaited_count=awaited_count)
        self.heard()
        return self.answers[step]

    def fail(self, error: PentimentoError = GONE) -> None:
        self._end.set_result(error)

    def ask(self, step: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        self.asked.append((step, keeps_from))

    def take(self, step: int) -> ReceivedTensors | None:
        return self.answers.get(step)

    async def end(self) -> PentimentoError:
        return await self._end

    def close(self, *, in_order: bool) -> None:
        self.closed.append(in_order)


@dataclass
class Place:
    """A place that takes the first of two replicas that did not fail; a stream opens after `full_count` rejections."""

    streams: list[tuple[str, Scripted]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=lambda: ["a", "b"])
    left: bool = True
    full_count: int = 0
    refused_count: int = 0
    failed_count: int = 0

    async def take(self) -> "Place":
        self.left = False
        return self

    async def open_stream(self, request: object, epoch: int, timeout_s: float) -> StepStream:
        await asyncio.sleep(0)
        if self.full_count:
            self.full_count -= 1
            raise ResourceExhausted("NO_CREDIT", "at most 1 streams may be open")
        self.streams.append((self.addresses[0], Scripted(epoch)))
        return cast(StepStream, self.stream(-1))

    def stream(self, number: int) -> Scripted:
        return self.streams[number][1]

    def failed(self) -> None:
        self.failed_count += 1
        self.addresses.append(self.addresses.pop(0))

    def leave(self) -> None:
        self.left = True

    def opened(self) -> None:
        """Ignore the opened stream."""

    def refused(self) -> None:
        self.refused_count += 1


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_stream, "FULL_WAIT_S", 0.0)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def wakes() -> list[None]:
    return []


@pytest.fixture
async def stream(place: Place, wakes: list[None]) -> AsyncIterator[ReplayedStream]:
    made = ReplayedStream(cast(StreamPlace[Any], place), PATIENCE, lambda: wakes.append(None))
    made.open(None)
    yield made
    made.close()


def ask(stream: ReplayedStream, step: int, keeps_from: int | None = None) -> None:
    stream.ask(step, 1.0, LATENTS, step if keeps_from is None else keeps_from)


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_steps_requested_before_opening_use_one_stream_in_order(stream: ReplayedStream, place: Place) -> None:
    for step in range(2):
        ask(stream, step, keeps_from=0)
    await settled()
    ask(stream, 2, keeps_from=1)

    assert [address for address, _ in place.streams] == ["a"]
    assert place.stream(0).asked == [(0, 0), (1, 0), (2, 1)]
    assert stream.take(1) is None
    found = place.stream(0).answer(1)
    assert stream.take(1) is found


async def test_lost_replica_leaves_open_steps_to_next(stream: ReplayedStream, place: Place, wakes: list[None]) -> None:
    await settled()
    for step in (4, 5, 6):
        ask(stream, step, keeps_from=4)
    whole = place.stream(0).answer(4)
    place.stream(0).answer(5, awaited_count=1)

    place.stream(0).fail()
    await settled()

    assert place.stream(0).closed == [False]
    assert [(address, one.epoch) for address, one in place.streams] == [("a", 1), ("b", 2)]
    assert place.stream(1).asked == [(5, 4), (6, 4)]
    assert (stream.take(4), stream.take(5)) == (whole, None)
    woken = len(wakes)
    found = [place.stream(1).answer(step) for step in (5, 6)]
    assert [stream.take(step) for step in (5, 6)] == found
    assert len(wakes) > woken
    ask(stream, 7)
    assert stream.take(4) is None


async def test_stream_lost_between_steps_opens_with_next(stream: ReplayedStream, place: Place) -> None:
    ask(stream, 0)
    await settled()
    found = place.stream(0).answer(0)
    place.stream(0).fail()
    await settled()
    assert (len(place.streams), place.left, stream.take(0)) == (1, True, found)

    ask(stream, 1)
    await settled()

    assert place.stream(1).asked == [(1, 1)]


async def test_step_that_no_replica_answers_fails(stream: ReplayedStream, place: Place, wakes: list[None]) -> None:
    ask(stream, 0)
    ask(stream, 1, keeps_from=0)
    for number in range(PATIENCE.replays + 1):
        await settled()
        assert not wakes
        place.stream(number).fail()
    await settled()

    assert wakes
    for step in range(2):
        with pytest.raises(Unavailable) as caught:
            stream.take(step)
        assert caught.value.reason == "CONTROLNET_LOST"
    assert (len(place.streams), place.left) == (PATIENCE.replays + 1, True)


async def test_answers_between_losses_renew_replays(stream: ReplayedStream, place: Place) -> None:
    for step in range(2 * PATIENCE.replays):
        ask(stream, step)
        await settled()
        place.stream(-1).fail()
        await settled()
        place.stream(-1).answer(step)

    assert stream.take(2 * PATIENCE.replays - 1) is not None


async def test_error_of_request_is_not_replayed(stream: ReplayedStream, place: Place) -> None:
    ask(stream, 0)
    await settled()
    place.stream(0).fail(InvalidArgument.of("step.timestep", "must be finite, got nan"))
    await settled()

    with pytest.raises(InvalidArgument):
        stream.take(0)
    assert len(place.streams) == 1


async def test_closed_stream_is_not_opened_again(stream: ReplayedStream, place: Place) -> None:
    ask(stream, 0)
    await settled()
    stream.close()
    ask(stream, 1)
    await settled()

    assert (len(place.streams), place.left, place.stream(0).closed) == (1, True, [True])


@pytest.mark.parametrize("full_count", [FULL_TRIES - 1, 10 * FULL_TRIES])
async def test_full_replicas_are_tried_until_one_has_room(place: Place, full_count: int) -> None:
    place.full_count, replays = full_count, metrics.CONTROL_REPLAYS._value.get()
    stream = ReplayedStream(cast(StreamPlace[Any], place), PATIENCE, lambda: None)
    stream.open(None)
    ask(stream, 0)
    await settled()

    assert (place.refused_count, place.failed_count) == (min(full_count, FULL_TRIES), 0)
    assert metrics.CONTROL_REPLAYS._value.get() == replays
    if full_count < FULL_TRIES:
        assert place.stream(0).asked == [(0, 0)]
    else:
        with pytest.raises(ResourceExhausted) as caught:
            stream.take(0)
        assert (caught.value.reason, caught.value.retry_after_ms) == ("CONTROLNET_FULL", 1000)
    stream.close()


async def test_stream_closed_while_it_opens_leaves_replica(stream: ReplayedStream, place: Place) -> None:
    place.full_count = 10 * FULL_TRIES
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not place.left

    stream.close()
    refused_count = place.refused_count
    await settled()

    assert (place.left, place.streams, place.refused_count) == (True, [], refused_count)
