"""A relayed connection: forwarded and waiting messages, and how the end of one side reaches the other."""

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from pentimento.rpc.relay.call_turns import CallTurns
from pentimento.rpc.relay.connection import Connection
from tests.unit.rpc.relay.test_call_frames import FIELDS, STEPS, written
from tests.unit.rpc.relay.test_call_turns import turns_of


@dataclass(eq=False)
class End:
    """A transport that records its calls."""

    sent: bytes = b""
    paused: bool = False
    told: list[str] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def close(self) -> None:
        self.told.append("close")

    def abort(self) -> None:
        self.told.append("abort")


@dataclass
class Made:
    """A connection between two such ends, of turns that let one untaken call in."""

    turns: CallTurns
    connection: Connection
    client: End
    server: End


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    turns = turns_of(1)
    made = Made(turns, Connection(turns), End(), End())
    made.connection.client_made(made.client)  # type: ignore[arg-type]
    made.connection.server_made(made.server)  # type: ignore[arg-type]
    yield made
    turns.leave(made.connection)


def calls(count: int) -> tuple[bytes, list[int]]:
    found = written(["call"] * count)
    return found.data, [*found.calls_at, len(found.data)]


async def test_nothing_is_read_before_grpc_is_connected() -> None:
    client, connection = End(), Connection(turns_of(1))

    connection.client_made(client)  # type: ignore[arg-type]
    before = client.paused
    connection.server_made(End())  # type: ignore[arg-type]

    assert (before, client.paused) == (True, False)


async def test_bytes_before_server_connects_are_sent_then() -> None:
    data, ends = calls(2)
    connection, server = Connection(turns_of(1)), End()
    connection.client_made(End())  # type: ignore[arg-type]

    connection.from_client(data[:30])
    connection.from_client(data[30:])
    connection.server_made(server)  # type: ignore[arg-type]

    assert server.sent == data[: ends[1]]


async def test_call_waits_with_bytes_after_it(made: Made) -> None:
    data, ends = calls(3)

    made.connection.from_client(data)

    assert made.server.sent == data[: ends[1]]


async def test_pings_overtake_a_call_that_waits(made: Made) -> None:
    """Our clients close a connection that does not answer a ping within 1.5 s."""
    connection = written(["call", "call", "ping", "message", "ping"])
    waiting_at, ping = connection.calls_at[1], written(["ping"]).data[-17:]

    for start, end in pairwise(range(0, len(connection.data) + 7, 7)):
        made.connection.from_client(connection.data[start:end])

    assert made.server.sent == connection.data[:waiting_at] + 2 * ping


async def test_begun_calls_continue_while_one_waits(made: Made) -> None:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, FIELDS)
    client.send_headers(3, FIELDS)
    waiting = client.data_to_send()
    client.send_data(1, b"begun", end_stream=True)
    client.increment_flow_control_window(1000)
    client.increment_flow_control_window(1000, 1)
    begun = client.data_to_send()
    client.send_data(3, b"waits")
    client.reset_stream(3)
    made.connection.from_client(waiting)
    before = made.server.sent

    made.connection.from_client(begun + client.data_to_send())

    assert made.server.sent == before + begun


@given(STEPS, st.lists(st.one_of(st.integers(1, 60), st.none()), max_size=30))
async def test_server_reads_same_calls_in_any_order_of_waits(steps: list[str], acts: list[int | None]) -> None:
    """An act is a number of bytes that arrive, or None: a call is taken."""
    connection, server, at = Connection(turns := turns_of(1)), End(), 0
    data = written(steps).data
    connection.client_made(End())  # type: ignore[arg-type]
    connection.server_made(server)  # type: ignore[arg-type]

    for act in [*acts, len(data)]:
        if act is None:
            turns.taken()
        else:
            connection.from_client(data[at : at + act])
            at += act
    for _ in steps:
        turns.taken()

    assert read_by_a_server(server.sent) == read_by_a_server(data)


def read_by_a_server(data: bytes) -> dict[int, list[str]]:
    """Return the events that a server receives on each stream in order; stream 0 is the connection."""
    heard: dict[int, list[str]] = defaultdict(list)
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    for event in server.receive_data(data):
        heard[getattr(event, "stream_id", 0) or 0].append(repr(event))
    return heard


@pytest.mark.parametrize(("held_by_others", "bound_bytes"), [(0, 256 * 1024), (64 * 1024 * 1024, 32 * 1024)])
async def test_a_connection_that_waits_is_read_so_far(made: Made, held_by_others: int, bound_bytes: int) -> None:
    """The bound is lower while all waiting connections hold many bytes."""
    data, _ = calls(2)
    made.turns.held_bytes = held_by_others
    made.connection.from_client(data)
    paused = [made.client.paused]

    for length in (bound_bytes - 1000, 1000):
        made.connection.from_client(length.to_bytes(3) + bytes([0, 0, 0, 0, 0, 99]) + bytes(length))
        paused.append(made.client.paused)

    assert paused == [False, False, True]


async def test_held_bytes_fall_when_calls_continue_or_end(made: Made) -> None:
    data, ends = calls(3)
    made.connection.from_client(data)
    held = [made.turns.held_bytes]

    made.turns.taken()
    held.append(made.turns.held_bytes)
    made.connection.client_lost()

    assert [*held, made.turns.held_bytes] == [ends[3] - ends[1], ends[3] - ends[2], 0]


async def test_each_call_continues_when_one_is_taken(made: Made) -> None:
    data, ends = calls(3)
    made.connection.from_client(data)

    lengths = []
    for _ in range(2):
        made.turns.taken()
        lengths.append(len(made.server.sent))

    assert lengths == ends[2:]
    assert made.server.sent == data
    assert not made.client.paused


@pytest.mark.parametrize(("full", "read"), [("server", "client"), ("client", "server")])
async def test_end_is_not_read_while_the_other_takes_nothing(made: Made, full: str, read: str) -> None:
    paused = []
    for is_full in (True, False):
        getattr(made.connection, f"{full}_full")(is_full)
        paused.append(getattr(made, read).paused)

    assert paused == [True, False]


async def test_a_client_that_leaves_ends_grpcs_connection_and_its_turn(made: Made) -> None:
    data, ends = calls(2)
    made.connection.from_client(data)

    made.connection.client_lost()
    made.turns.taken()

    assert made.server.told == ["abort"]
    assert made.server.sent == data[: ends[1]]
    assert made.connection.ended.done()


async def test_client_receives_last_bytes_of_server(made: Made) -> None:
    made.connection.server_lost()
    told = list(made.client.told)
    made.connection.client_lost()

    assert told == ["close"]
    assert made.connection.ended.done()


async def test_client_that_leaves_before_server_connects_leaves_nothing_open() -> None:
    connection, server = Connection(turns_of(1)), End()
    connection.client_made(End())  # type: ignore[arg-type]

    connection.client_lost()
    connection.server_made(server)  # type: ignore[arg-type]

    assert server.told == ["abort"]
