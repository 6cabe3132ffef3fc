"""Test that host:port connections alternate in gRPC: the calls of one connection do not delay another."""

import asyncio
import gc
import socket
import stat
import time
import tracemalloc
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from lab.fixtures.certificates import Authority
from lab.fixtures.raw_http2 import framed, raw_connection
from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, new_token, open_channel, server
from pentimento.rpc import token_entry as entry
from pentimento.rpc.call_limits import BURST_CALLS
from pentimento.rpc.relay.call_turns import MOST_UNTAKEN
from pentimento.rpc.settings import ServerBounds, TlsSettings
from tests.contract.rpc.scripted import EMBED_TEXT, EMBEDDER, Scripted, channel_to, embed, embedder_stub, serving
from tests.support.silent_connections import silent_connections
from tests.support.waiting import until

STORM = 400
MEBIBYTE = 1 << 20
SETTLED_S = 0.2
PAUSE_S = 0.02
GUARD_S = 60.0
PING = b"a ping's"


def relayed() -> AbstractAsyncContextManager[Scripted]:
    """Serve one relayed address."""
    return serving(RpcServerSettings(listen=("127.0.0.1:0",)), takes_turns=True)


@contextmanager
def sent(address: str, texts: list[str], ping: bytes = b"") -> Iterator[socket.socket]:
    """Yield a connection that has sent a call for each text, then a ping. Without a relay, gRPC's own threads have had
    the time to read its bytes; the event loop has not run since."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for text in texts:
        stream = client.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", EMBED_TEXT), (":authority", "x")]
        client.send_headers(stream, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
        message = embedder.EmbedTextRequest(texts=[text]).SerializeToString()
        client.send_data(stream, framed(message), end_stream=True)
    if ping:
        client.ping(ping)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as made:
        made.sendall(client.data_to_send())
        time.sleep(SETTLED_S)
        yield made


def both_wait(target: Scripted) -> None:
    """Return once two connections wait for their turn, without running the event loop."""
    turns, end = target.server._pipeline._turns, time.monotonic() + GUARD_S
    assert turns is not None
    while len(turns._waiting) < 2:
        assert time.monotonic() < end
        give_way()


def give_way() -> None:
    """Leave the processor to the threads of the relay and of gRPC, long enough for a busy machine."""
    time.sleep(PAUSE_S)


async def test_a_call_behind_a_storm_of_another_connection_is_taken_within_a_few() -> None:
    begun: list[str] = []

    async def note(request: embedder.EmbedTextRequest) -> str:
        begun.extend(request.texts)
        if "bystander" not in begun:
            give_way()
        return ""

    async with relayed() as target:
        target.embedder.embed = note
        with sent(target.address, ["storm"] * STORM), sent(target.address, ["bystander"]):
            both_wait(target)
            await until(lambda: "bystander" in begun)

    # gRPC holds MOST_UNTAKEN calls, and takes some more while the second connection is accepted.
    assert begun.index("bystander") <= 4 * MOST_UNTAKEN


async def test_pings_are_answered_while_calls_wait() -> None:
    """The event loop does not run: all but a few of the storm's calls wait in front of gRPC."""
    async with relayed() as target:
        with sent(target.address, ["storm"] * STORM, PING) as connection:
            connection.settimeout(60.0)
            read = b""
            while PING not in read:
                read += connection.recv(4096)

    assert PING in read


async def test_messages_of_any_size_pass_both_ways_unchanged() -> None:
    images = [bytes([number]) * MEBIBYTE for number in range(6)]

    async with relayed() as target, channel_to(target) as channel:
        answer = await embedder_stub(channel).EmbedImage(embedder.EmbedImageRequest(images=images))

    assert [embedding.values for embedding in answer.embeddings] == images


async def test_waiting_calls_are_refused_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may need this long to refuse them one after another.
    monkeypatch.setattr(server, "REFUSE_S", 60.0)
    held = asyncio.Event()

    async def hold(request: embedder.EmbedTextRequest) -> str:
        await held.wait()
        return ""

    async with relayed() as target:
        target.embedder.embed = hold
        async with channel_to(target) as channel:
            calls = [asyncio.ensure_future(embed(channel, "x")) for _ in range(STORM)]
            await until(lambda: target.server._pipeline.activity[0] >= MOST_UNTAKEN)
            await target.server.stop()
            answers = await asyncio.gather(*calls, return_exceptions=True)

    assert {answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)} == {
        grpc.StatusCode.UNAVAILABLE
    }


@pytest.mark.slow
async def test_calls_without_method_delay_no_other_connection() -> None:
    async with relayed() as target, channel_to(target) as channel:
        unknown = channel.unary_unary(f"/{EMBEDDER}/Unheard")
        answers = await asyncio.gather(*(unknown(b"") for _ in range(100)), return_exceptions=True)

        assert {answer.code() for answer in answers} == {grpc.StatusCode.UNIMPLEMENTED}  # type: ignore[union-attr]
        assert await embed(channel, "next") == "next"


async def test_reset_streams_delay_no_other_connection() -> None:
    async with relayed() as target, raw_connection(target.address) as resetting, channel_to(target) as channel:
        for _ in range(300):
            await resetting.reset(await resetting.headers(EMBED_TEXT))

        assert await embed(channel, "next") == "next"


async def test_no_piece_of_an_answer_waits_for_an_acknowledgement() -> None:
    async with relayed() as target, channel_to(target) as channel:
        await embed(channel, "x")
        assert target.server._relay is not None
        (connection,) = target.server._relay._serving.values()
        assert connection._client is not None
        accepted = connection._client.get_extra_info("socket")

        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_connections_beyond_the_limit_are_closed_while_all_are_at_work() -> None:
    settings = RpcServerSettings(listen=("127.0.0.1:0",)), ServerBounds(max_connections=1)
    async with serving(*settings, takes_turns=True) as target, channel_to(target) as channel:
        target.embedder.embed, release = held_call()
        first = asyncio.ensure_future(embed(channel, "first"))
        await until(lambda: target.server._pipeline.activity == (1, 1))
        async with raw_connection(target.address) as second:
            await second.closing()
        release.set()

        assert await first == "first"


def held_call() -> tuple[Callable[[embedder.EmbedTextRequest], Awaitable[str]], asyncio.Event]:
    """Return a handler that answers with the text once the event is set."""
    release = asyncio.Event()

    async def hold(request: embedder.EmbedTextRequest) -> str:
        await release.wait()
        return request.texts[0]

    return hold, release


async def test_silent_connections_are_closed_for_a_caller() -> None:
    """Open twice the permitted number of connections, before a call and during another call."""
    settings = RpcServerSettings(listen=("127.0.0.1:0",)), ServerBounds(max_connections=8)
    async with serving(*settings, takes_turns=True) as target, channel_to(target) as busy:
        target.embedder.embed, release = held_call()
        working = asyncio.ensure_future(embed(busy, "busy"))
        await until(lambda: target.server._pipeline.activity == (1, 1))
        host, _, port = target.address.rpartition(":")
        with silent_connections((host, int(port)), 16):
            async with channel_to(target) as channel:
                release.set()
                answers = await embed(channel, "late"), await working

    assert answers == ("late", "busy")


async def test_connection_without_calls_is_closed_first() -> None:
    settings = RpcServerSettings(listen=("127.0.0.1:0",)), ServerBounds(max_connections=2)
    async with serving(*settings, takes_turns=True) as target, raw_connection(target.address) as known:
        stream = await known.headers(EMBED_TEXT)
        await known.data(stream, framed(b""), end=True)
        await known.all_answered(GUARD_S)
        async with raw_connection(target.address) as stranger, channel_to(target) as channel:
            answer = await embed(channel, "third")
            await stranger.closing()
            stayed = not known.closed

    assert (answer, stayed) == ("third", True)


async def test_each_address_has_the_connections_that_it_may_have() -> None:
    settings = RpcServerSettings(listen=("127.0.0.1:0", "127.0.0.1:0")), ServerBounds(max_connections=1)
    async with serving(*settings, takes_turns=True) as target, AsyncExitStack() as channels:
        answers = []
        for address in target.server.bound_addresses:
            opened = open_channel(address, RpcChannelSettings(), own_connection=True)
            answers.append(await embed(await channels.enter_async_context(opened), address))

        assert answers == [*target.server.bound_addresses]


async def test_a_connection_that_ended_makes_room_for_another() -> None:
    settings = RpcServerSettings(listen=("127.0.0.1:0",)), ServerBounds(max_connections=1)
    async with serving(*settings, takes_turns=True) as target:
        for text in ("first", "second", "third"):
            async with channel_to(target) as channel:
                assert await embed(channel, text) == text
            assert target.server._relay is not None
            await until(lambda relay=target.server._relay: not relay._serving)  # type: ignore[misc]


async def test_a_client_that_leaves_ends_its_calls() -> None:
    cancelled = asyncio.Event()

    async def hold(request: embedder.EmbedTextRequest) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async with relayed() as target:
        target.embedder.embed = hold
        with sent(target.address, ["x"]):
            await until(lambda: target.server._pipeline.activity == (1, 1))
        async with asyncio.timeout(60.0):
            await cancelled.wait()


async def test_the_socket_between_is_private_and_goes_with_the_server(socket_path: Path) -> None:
    settings = RpcServerSettings(listen=(f"unix:{socket_path}", "127.0.0.1:0"))
    async with serving(settings, takes_turns=True) as target:
        port = target.server.bound_addresses[1].rpartition(":")[2]
        between = socket_path.parent / f"{port}.relay"
        mode = stat.S_IMODE(between.lstat().st_mode)

    assert mode == 0o600
    assert list(socket_path.parent.iterdir()) == []


async def test_servers_of_the_same_port_of_two_hosts_serve_both(socket_path: Path) -> None:
    directory = socket_path.parent
    first_settings = RpcServerSettings(listen=(f"unix:{directory / 'a'}", "127.0.0.1:0"))
    async with serving(first_settings, takes_turns=True) as first:
        port = first.server.bound_addresses[1].rpartition(":")[2]
        second_settings = RpcServerSettings(listen=(f"unix:{directory / 'b'}", f"127.0.0.2:{port}"))
        async with serving(second_settings, takes_turns=True) as second:
            relays = sorted(path.name for path in directory.glob("*.relay"))
            addresses = [server.bound_addresses[1] for server in (first.server, second.server)]
            answers = []
            for address in addresses:
                async with open_channel(address, RpcChannelSettings()) as channel:
                    answers.append(await embed(channel, address))

    assert relays == [f"{port}-2.relay", f"{port}.relay"]
    assert answers == addresses
    assert list(directory.iterdir()) == []


async def test_relay_socket_moves_if_its_path_would_be_too_long(socket_path: Path) -> None:
    longest = 107 - len(str(socket_path.parent)) - len("/") - len("/s")
    beside = socket_path.parent / ("x" * longest) / "s"
    settings = RpcServerSettings(listen=(f"unix:{beside}", "127.0.0.1:0"))
    async with serving(settings, takes_turns=True) as target:
        async with open_channel(target.server.bound_addresses[1], RpcChannelSettings()) as channel:
            answer = await embed(channel, "through it")
        lies_beside = target.server._relayed_at is not None and target.server._relayed_at.parent == beside.parent

    assert (answer, lies_beside) == ("through it", False)


async def test_callers_without_token_are_limited_by_address(socket_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(entry(new_token(), "alice", frozenset({Role.SERVICE})))
    settings = RpcServerSettings(listen=("127.0.0.1:0",), token_file=file, tenant_calls_per_s=1 / 3600)
    async with serving(settings, takes_turns=True) as target, channel_to(target) as channel:
        calls = [asyncio.ensure_future(embed(channel, "x")) for _ in range(2 * BURST_CALLS)]
        await until(lambda: sum(call.done() for call in calls) >= BURST_CALLS)
        keys = set(target.server._pipeline._shaper._lines)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    assert keys == {"peer ipv4:127.0.0.1"}


@pytest.mark.slow  # counts the memory of its whole process
async def test_silent_connections_with_tls_hold_little_and_leave_nothing_to_a_collection(tmp_path: Path) -> None:
    """asyncio's own bound is 256 KiB for each, and its frames hold the remains of a failed handshake."""
    pair = Authority(tmp_path, "authority").issue("server")
    settings = RpcServerSettings(listen=("127.0.0.1:0",), tls=TlsSettings(pair.directory))
    async with serving(settings, takes_turns=True) as target:
        address = ("127.0.0.1", int(target.server.bound_addresses[0].rpartition(":")[2]))
        gc.collect()
        gc.disable()
        others = tls_connections()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            with silent_connections(address, 40):
                await until(lambda: len(tls_connections(others)) == 40)
                held, _ = tracemalloc.get_traced_memory()

            await until(lambda: not tls_connections(others))
        finally:
            tracemalloc.stop()
            gc.enable()

    assert (held - before) / 40 < 64 * 1024


def tls_connections(others: Sequence[SSLProtocol] = ()) -> list[SSLProtocol]:
    """Return this process's TLS connections without `others`, which earlier tests may have left."""
    return [one for one in gc.get_objects() if type(one) is SSLProtocol and not any(one is other for other in others)]
