"""Steps that are asked for before the one before them is there: in their order, on one replica or on the next."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pentimento.clients.controlnet import ControlNetClient, ResidualStream, ResidualStreamRequest
from pentimento.domain.errors import InvalidArgument, ResourceExhausted, Unavailable
from pentimento.tensors.outgoing import OutgoingTensor
from services.unet_worker import metrics
from services.unet_worker.control import replayed_stream
from services.unet_worker.control.replayed_stream import MAX_FULL_WAITS, MAX_REPLAYS, ReplayedStream
from services.unet_worker.control.replicas import StreamPlace
from tests.support.logged import said_by

LATENTS = cast(OutgoingTensor, None)


@dataclass
class Scripted:
    """A stream on one replica: what was asked of it, in order, and an answer for each step once it is let."""

    epoch: int
    asked: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = False
    in_order: bool = False
    lined: bool = False
    heard: Any = None
    _answers: dict[int, "asyncio.Future[str]"] = field(default_factory=dict)

    def answer(self, step: int) -> "asyncio.Future[str]":
        return self._answers.setdefault(step, asyncio.get_running_loop().create_future())

    async def ask(self, step: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        await asyncio.sleep(0)
        assert not self.closed
        self.asked.append((step, keeps_from))

    async def take(self, step: int) -> str:
        return await self.answer(step)

    def close(self, *, in_order: bool) -> None:
        self.closed, self.in_order = True, in_order


@dataclass
class Place:
    """Takes whatever replica of two did not fail; opens a stream there, once `full_count` more were refused."""

    streams: list[tuple[str, Scripted]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=lambda: ["a", "b"])
    left: bool = True
    full_count: int = 0
    refused_count: int = 0
    failed_count: int = 0

    async def take(self) -> ControlNetClient:
        self.left = False
        return cast(ControlNetClient, self)

    async def open_stream(self, request: ResidualStreamRequest, epoch: int, timeout_s: float) -> ResidualStream:
        await asyncio.sleep(0)
        if self.full_count:
            self.full_count -= 1
            raise ResourceExhausted("NO_CREDIT", "at most 1 streams may be open")
        self.streams.append((self.addresses[0], Scripted(epoch)))
        return cast(ResidualStream, self.stream(-1))

    def stream(self, number: int) -> Scripted:
        return self.streams[number][1]

    def failed(self) -> None:
        self.failed_count += 1
        self.addresses.append(self.addresses.pop(0))

    def leave(self) -> None:
        self.left = True

    def opened(self) -> None:
        """Tells nobody."""

    def refused(self) -> None:
        self.refused_count += 1


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_stream, "FULL_WAIT_S", 0.0)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def stream(place: Place) -> ReplayedStream:
    return ReplayedStream("edges", cast(StreamPlace, place), cast(ResidualStreamRequest, None))


def asking(stream: ReplayedStream, step: int, keeps_from: int | None = None) -> "asyncio.Task[Any]":
    return asyncio.ensure_future(stream.residuals(step, 1.0, LATENTS, keeps_from))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_step_is_sent_while_the_one_before_it_is_under_way(stream: ReplayedStream, place: Place) -> None:
    first = asking(stream, 0)
    await settled()
    second = asking(stream, 1, keeps_from=0)
    await settled()

    replica = place.stream(0)
    assert replica.asked == [(0, 0), (1, 0)]
    replica.answer(1).set_result("one")
    await settled()
    assert not second.done()
    replica.answer(0).set_result("zero")
    assert (await first, await second) == ("zero", "one")
    assert len(place.streams) == 1


async def test_two_steps_asked_at_once_open_one_stream_and_keep_their_order(
    stream: ReplayedStream, place: Place
) -> None:
    tasks = [asking(stream, step, step) for step in range(3)]
    await settled()

    assert [address for address, _ in place.streams] == ["a"]
    assert [step for step, _ in place.stream(0).asked] == [0, 1, 2]
    for step in range(3):
        place.stream(0).answer(step).set_result(str(step))
    assert await asyncio.gather(*tasks) == ["0", "1", "2"]


async def test_a_lost_replica_leaves_its_open_steps_to_the_next_one_in_their_order(
    stream: ReplayedStream, place: Place
) -> None:
    first = asking(stream, 4)
    await settled()
    place.stream(0).answer(4).set_result("four")
    await first
    second = asking(stream, 5)
    await settled()
    third = asking(stream, 6, keeps_from=5)
    await settled()

    place.stream(0).answer(5).set_exception(Unavailable("CONTROLNET_GONE", "gone"))
    await settled()

    assert place.stream(0).closed
    assert [(address, one.epoch) for address, one in place.streams] == [("a", 1), ("b", 2)]
    assert place.stream(1).asked == [(5, 5), (6, 5)]
    place.stream(1).answer(5).set_result("five")
    place.stream(1).answer(6).set_result("six")
    assert (await second, await third) == ("five", "six")


async def test_a_step_that_no_replica_answers_fails_and_so_does_the_one_behind_it(
    stream: ReplayedStream, place: Place
) -> None:
    first = asking(stream, 0)
    await settled()
    second = asking(stream, 1, keeps_from=0)
    for number in range(2 * (MAX_REPLAYS + 1)):
        await settled()
        taken = number // (MAX_REPLAYS + 1)
        place.stream(number).answer(taken).set_exception(Unavailable("CONTROLNET_GONE", "gone"))

    outcomes = await asyncio.gather(first, second, return_exceptions=True)

    assert [getattr(outcome, "reason", None) for outcome in outcomes] == ["CONTROLNET_LOST"] * 2
    assert len(place.streams) == 2 * (MAX_REPLAYS + 1)


async def test_a_closed_stream_is_not_opened_again(stream: ReplayedStream, place: Place) -> None:
    first = asking(stream, 0)
    await settled()
    stream.close()
    place.stream(0).answer(0).set_exception(Unavailable("CONTROLNET_GONE", "gone"))

    with pytest.raises(Unavailable):
        await first
    assert len(place.streams) == 1


@pytest.mark.usefixtures("no_waits")
async def test_replicas_that_are_full_are_asked_until_one_has_room(stream: ReplayedStream, place: Place) -> None:
    place.full_count = MAX_FULL_WAITS - 1

    first = asking(stream, 0)
    for _ in range(MAX_FULL_WAITS):
        await settled()
    place.stream(0).answer(0).set_result("zero")

    assert await first == "zero"
    assert (place.refused_count, place.failed_count) == (MAX_FULL_WAITS - 1, 0)


@pytest.mark.usefixtures("no_waits")
async def test_replicas_that_stay_full_fail_the_step_by_a_reason_of_its_own_and_none_of_them_is_lost(
    stream: ReplayedStream, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.full_count = 10 * MAX_FULL_WAITS
    replays = metrics.CONTROL_REPLAYS._value.get()

    with pytest.raises(ResourceExhausted) as caught:
        await stream.residuals(0, 1.0, LATENTS)

    assert (caught.value.reason, caught.value.retry_after_ms) == ("CONTROLNET_FULL", 1000)
    assert (place.refused_count, place.failed_count) == (MAX_FULL_WAITS, 0)
    assert metrics.CONTROL_REPLAYS._value.get() == replays
    assert [record.getMessage() for record in said_by("services.unet_worker.control.replayed_stream", caplog)] == [
        "every replica of a ControlNet is full: NO_CREDIT"
    ]


@pytest.mark.usefixtures("no_waits")
async def test_a_closed_stream_asks_no_full_replica_again(stream: ReplayedStream, place: Place) -> None:
    place.full_count = MAX_FULL_WAITS
    first = asking(stream, 0)
    await asyncio.sleep(0)
    stream.close()

    with pytest.raises(ResourceExhausted):
        await first
    assert place.refused_count == 1


async def test_a_stream_that_was_closed_while_it_looked_for_a_replica_leaves_the_one_that_refuses_it(
    stream: ReplayedStream, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()

    async def take() -> ControlNetClient:
        await looked.wait()
        place.left = False
        return cast(ControlNetClient, place)

    async def refuse(*_: object) -> ResidualStream:
        raise InvalidArgument.of("open.width_px", "must be between 1 and 8192, got 0")

    monkeypatch.setattr(place, "take", take)
    monkeypatch.setattr(place, "open_stream", refuse)
    first = asking(stream, 0)
    await settled()
    stream.close()
    looked.set()

    with pytest.raises(InvalidArgument):
        await first
    assert place.left
