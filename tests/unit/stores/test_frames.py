"""Frames between the index and its child."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.stores.vectors.frames import BrokenWire, Frame, receive_frame, send_frame

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(header=st.dictionaries(st.text(max_size=5), JSON, max_size=4), body=st.binary(max_size=500))
def test_sent_frame_is_received(header: dict[str, object], body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_frame(ours, Frame(header, body))

        assert receive_frame(theirs) == Frame(header, body)


@given(junk=st.binary(min_size=8, max_size=200))
def test_junk_is_a_broken_wire(junk: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(junk)
        ours.shutdown(socket.SHUT_WR)
        try:
            while True:
                frame = receive_frame(theirs)
                assert len(frame.body) <= len(junk)
        except BrokenWire:
            pass


def test_a_closed_end_is_a_broken_wire(wire: tuple[socket.socket, socket.socket]) -> None:
    wire[0].close()

    with pytest.raises(BrokenWire):
        receive_frame(wire[1])


def test_silence_is_a_timeout_and_the_next_frame_is_whole(wire: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = wire
    theirs.settimeout(0.01)

    with pytest.raises(TimeoutError):
        receive_frame(theirs)

    send_frame(ours, Frame({"id": 1}, b"x"))
    assert receive_frame(theirs) == Frame({"id": 1}, b"x")


def test_a_peer_that_does_not_read_is_a_broken_wire(wire: tuple[socket.socket, socket.socket]) -> None:
    wire[0].settimeout(0.01)

    with pytest.raises(BrokenWire):
        send_frame(wire[0], Frame({}, bytes(10_000_000)))
