"""Where calls begin among a client's bytes, held to what the h2 library writes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from pentimento.rpc.relay.call_frames import CallFrames

FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"), ("te", "trailers")]
# What a client does on a connection, one after the other; a message or a trailer is the last call's.
STEPS = st.lists(st.sampled_from(["call", "message", "trailers", "ping", "long headers"]), max_size=12)


@dataclass
class Written:
    """The bytes of a connection, and where in them calls begin."""

    data: bytes = b""
    calls_at: list[int] = field(default_factory=list)


def written(steps: Sequence[str]) -> Written:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    # Huffman's code is most of the work of long headers, on both sides, and says nothing of frames.
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
    """What `CallFrames` makes of the same bytes in pieces, when each call may begin at once."""
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


def test_a_piece_of_a_frame_header_does_not_go_on() -> None:
    connection = written(["call"])
    frames, at = CallFrames(), connection.calls_at[0]

    assert frames.next_call(connection.data[: at + 8], 0) == (at, False)
    assert frames.next_call(connection.data[at:], 0) == (0, True)
