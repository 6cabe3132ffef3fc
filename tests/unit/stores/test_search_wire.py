"""SearchWire connects an event loop to a child; the test is the child's end."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.frames import Frame, FrameBuffer, receive_frame, send_frame
from pentimento.stores.vectors.search_wire import SearchWire


class Child:
    """The other end, and the calls that were answered."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.answered: list[int] = []
        self.wire = SearchWire(ours, self.answered.append)

    def ask(self, number: int, body: bytes = b"vector") -> "asyncio.Future[Frame]":
        return self.wire.ask(Frame({"id": number}, body))


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.wire.end()
    made.theirs.close()


async def test_replies_reach_their_requests_in_any_order(child: Child) -> None:
    first, second = child.ask(1), child.ask(2)
    assert [receive_frame(child.theirs).header["id"] for _ in range(2)] == [1, 2]

    for number in (2, 1):
        send_frame(child.theirs, Frame({"id": number, "matches": [number]}))

    assert (await first).header["matches"] == [1]
    assert (await second).header["matches"] == [2]
    assert child.answered == [2, 1]


async def test_reply_after_cancel_is_counted_and_dropped(child: Child) -> None:
    cancelled, other = child.ask(1), child.ask(2)
    cancelled.cancel()

    for number in (1, 2):
        send_frame(child.theirs, Frame({"id": number}))
    await other

    assert child.answered == [1, 2]


async def test_lost_child_fails_waiting_requests(child: Child) -> None:
    asked = child.ask(1)

    child.theirs.close()

    with pytest.raises(StoreUnavailable):
        await asked
    with pytest.raises(StoreUnavailable):
        child.ask(2)


async def test_end_by_other_thread_fails_waiting_requests(child: Child) -> None:
    asked = child.ask(1)

    await asyncio.to_thread(child.wire.end)

    with pytest.raises(StoreUnavailable):
        await asked


async def test_bytes_that_are_no_frames_end_it(child: Child) -> None:
    asked = child.ask(1)

    child.theirs.sendall(b"\xff" * 64)

    with pytest.raises(StoreUnavailable):
        await asked


async def test_frame_beyond_a_full_socket_is_sent_whole_once_there_is_room(child: Child) -> None:
    large = b"x" * 4_000_000
    asked = [child.ask(1, large), child.ask(2)]

    received = await asyncio.to_thread(lambda: [receive_frame(child.theirs) for _ in asked])
    for number in (1, 2):
        send_frame(child.theirs, Frame({"id": number}))

    assert [frame.body for frame in received] == [large, b"vector"]
    assert [reply.header["id"] for reply in await asyncio.gather(*asked)] == [1, 2]


def test_second_event_loop_is_served_once_the_first_is_closed(child: Child) -> None:
    async def ask() -> int:
        asked = child.ask(1)
        send_frame(child.theirs, receive_frame(child.theirs))
        return int((await asked).header["id"])

    with asyncio.Runner() as runner:
        assert runner.run(ask()) == 1
        with asyncio.Runner() as other, pytest.raises(StoreUnavailable, match="another event loop"):
            other.run(ask())
    with asyncio.Runner() as later:
        assert later.run(ask()) == 1


def test_frames_come_out_of_parts_of_any_size() -> None:
    ours, theirs = socket.socketpair()
    frames = [Frame({"id": 1}, b"body"), Frame({"id": 2}), Frame({"id": 3, "more": ["x"]}, b"y" * 100)]
    with ours, theirs:
        for frame in frames:
            send_frame(ours, frame)
        data = theirs.recv(1 << 16)

    for size in (1, 7, 50, len(data)):
        buffer = FrameBuffer()
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        assert [frame for part in parts for frame in buffer.feed(part)] == frames
