"""Find the begin and end of calls in the bytes of a connection, compared with the h2 library."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from pentimento.rpc.relay.connection import AnswerFrames, CallFrames

FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"), ("te", "trailers")]
# Acts of a client on a connection, in order; a message or a trailer belongs to the last call.
STEPS = st.lists(st.sampled_from(["call", "message", "trailers", "ping", "long headers"]), max_size=12)


@dataclass
class Written:
    """The bytes of a connection, and where in them calls begin."""

    data: bytes = b""
    calls_at: list[int] = field(default_factory=list)


def written(steps: Sequence[str]) -> Written:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    # Huffman's code is most of the work of long headers, on both sides, and does not affect frames.
    client.encoder.encode = partial(client.encoder.encode, huffman=False)  # type: ignore[method-assign]
    made, stream, is_open = Written(client.data_to_send()), 0, False
    for step in steps:
        if step in ("call", "long headers"):
            made.calls_at.append(len(made.data))
            stream, is_open = client.get_next_available_stream_id(), True
            # Longer than a frame: the rest comes in CONTINUATION frames.
            client.send_headers(stream, [*FIELDS, ("x", "y" * (20_000 if step == "long headers" else 10))])
        elif step == "ping":
            client.ping(b"12345678")
        elif is_open and step == "message":
            client.send_data(stream, b"\0\0\0\0\x05hello")
        elif is_open:
            client.send_headers(stream, [("grpc-trailer", "z")], end_stream=True)
            is_open = False
        made.data += client.data_to_send()
    return made


def found_in(pieces: Sequence[bytes]) -> Written:
    """Return the parts that `CallFrames` finds in pieces of the same bytes, when each call may begin at once."""
    frames, found, held = CallFrames(), Written(), b""
    for piece in pieces:
        held, at = held + piece, 0
        while True:
            at, begins = frames.next_call(held, at)
            if not begins:
                break
            found.calls_at.append(len(found.data) + at)
            frames.begin_call()
        found.data, held = found.data + held[:at], held[at:]
    return Written(found.data + held, found.calls_at)


@given(STEPS, st.lists(st.integers(1, 40), max_size=30))
def test_every_call_is_found_where_it_begins_whatever_the_pieces(steps: list[str], sizes: list[int]) -> None:
    connection = written(steps)
    cuts = [0]
    for size in sizes:
        cuts.append(min(cuts[-1] + size, len(connection.data)))
    pieces = [connection.data[start:end] for start, end in zip(cuts, [*cuts[1:], len(connection.data)], strict=True)]

    assert found_in(pieces) == connection


def test_a_call_that_may_not_begin_is_offered_again() -> None:
    connection = written(["call", "message", "call"])
    frames = CallFrames()

    first = frames.next_call(connection.data, 0)
    again = frames.next_call(connection.data, first[0])
    frames.begin_call()
    second = frames.next_call(connection.data, again[0])

    assert (first, again) == ((connection.calls_at[0], True), (connection.calls_at[0], True))
    assert second == (connection.calls_at[1], True)


def test_piece_of_frame_header_is_held_back() -> None:
    connection = written(["call"])
    frames, at = CallFrames(), connection.calls_at[0]

    assert frames.next_call(connection.data[: at + 8], 0) == (at, False)
    assert frames.next_call(connection.data[at:], 0) == (0, True)


def answered(pieces_of: int) -> list[int]:
    """Return the streams that a server ends: 1 by its trailers, 3 by a reset, 7 by its last message; 5 stays open."""
    client = H2Connection(H2Configuration(client_side=True))
    server = H2Connection(H2Configuration(client_side=False))
    client.initiate_connection()
    for _ in range(4):
        client.send_headers(client.get_next_available_stream_id(), FIELDS)
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    for stream in (1, 3, 5, 7):
        server.send_headers(stream, [(":status", "200")])
        server.send_data(stream, bytes(16_000))
    server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    server.reset_stream(3)
    server.ping(b"12345678")
    server.send_data(7, b"", end_stream=True)
    data, frames = server.data_to_send(), AnswerFrames()
    return [
        stream
        for start in range(0, len(data), pieces_of)
        for stream in frames.ended_streams(data[start : start + pieces_of])
    ]


@pytest.mark.parametrize("pieces_of", [1, 4096])
def test_answers_end_their_streams_whatever_the_pieces(pieces_of: int) -> None:
    assert answered(pieces_of) == [1, 3, 7]


def test_calls_are_open_until_their_client_resets_them() -> None:
    client, frames = H2Connection(H2Configuration(client_side=True)), CallFrames()
    client.initiate_connection()
    for _ in range(2):
        client.send_headers(client.get_next_available_stream_id(), FIELDS)
    client.reset_stream(1)
    data, at = client.data_to_send(), 0
    begun = []
    while (found := frames.next_call(data, at))[1]:
        at = found[0]
        frames.begin_call()
        begun.append(set(frames.open_streams))

    assert begun == [{1}, {1, 3}]
    assert frames.open_streams == {3}
