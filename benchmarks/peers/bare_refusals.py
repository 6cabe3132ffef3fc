"""Measure the fastest refusal on this machine: servers that only refuse, called during the suite's load, at random
times, from the loading process. One uses grpc.aio; the other answers 429 over HTTP, from uvicorn.

    python -m benchmarks.peers.bare_refusals grpc     a server: prints its port, refuses until its input ends
    python -m benchmarks.peers.bare_refusals http
"""

import asyncio
import random
import socket
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import grpc

from benchmarks.peers.http_client import HttpClient

PATH = "/bare.Refusals/Refuse"
CALLS_PER_S = 20.0
REFUSED = 429


@asynccontextmanager
async def bare_refusals() -> AsyncIterator[list[float]]:
    """Yield the seconds of gRPC refusals, a list that grows while the context lasts."""
    async with (
        bare_server("grpc") as address,
        grpc.aio.insecure_channel(address) as channel,
        called_again_and_again(lambda: refused(channel)) as seconds,
    ):
        yield seconds


@asynccontextmanager
async def bare_http_refusals() -> AsyncIterator[list[float]]:
    """Yield the seconds of HTTP refusals (429 with Retry-After), as `bare_refusals`."""
    async with bare_server("http") as address:
        client = HttpClient(address)
        request = client.request({"prompt": "a red circle"})

        async def ask() -> None:
            answer = await client.ask(request)
            assert answer.status == REFUSED, answer

        async with called_again_and_again(ask) as seconds:
            yield seconds
        client.close()


@asynccontextmanager
async def bare_server(kind: str) -> AsyncIterator[str]:
    """Run a server of that kind in a process, and yield its address."""
    command = (sys.executable, "-m", "benchmarks.peers.bare_refusals", kind)
    server = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert server.stdin is not None and server.stdout is not None
    try:
        yield f"127.0.0.1:{int(await server.stdout.readline())}"
    finally:
        server.stdin.close()
        await server.wait()


@asynccontextmanager
async def called_again_and_again(ask: Callable[[], Awaitable[None]]) -> AsyncIterator[list[float]]:
    """Yield the seconds of calls made while the context lasts."""
    seconds: list[float] = []
    calling = asyncio.create_task(call(ask, seconds))
    try:
        yield seconds
    finally:
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling  # raises the call's error


async def call(ask: Callable[[], Awaitable[None]], seconds: list[float]) -> NoReturn:
    """Call repeatedly, one after the other."""
    source = random.Random(1)
    await ask()  # connects
    while True:
        await asyncio.sleep(source.expovariate(CALLS_PER_S))
        began = time.perf_counter()
        await ask()
        seconds.append(time.perf_counter() - began)


async def refused(channel: grpc.aio.Channel) -> None:
    """Call as a stream, as clients request images."""
    refuse: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(PATH)
    try:
        async for _ in refuse(b""):
            pass
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise


async def serve() -> None:
    async def refuse(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")

    service, method = PATH[1:].split("/")
    server = grpc.aio.server()
    handlers: dict[str, Any] = {method: grpc.unary_stream_rpc_method_handler(refuse)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


async def refuse_over_http(scope: Any, receive: Any, send: Any) -> None:
    """Answer 429 as an ASGI application, without reading the request."""
    head = [(b"retry-after", b"1"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": REFUSED, "headers": head})
    await send({"type": "http.response.body", "body": b""})


async def serve_http() -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(refuse_over_http, log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(settings)
    print(listener.getsockname()[1], flush=True)
    serving = asyncio.create_task(server.serve([listener]))
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run({"grpc": serve, "http": serve_http}[sys.argv[1]]())
