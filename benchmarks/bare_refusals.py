"""What the machine lets a refusal take at best: a server of grpc.aio that does nothing but refuse, called beside the
suite, at random times, from the process that loads the suite.

    python -m benchmarks.bare_refusals      the server: prints its port, refuses until its input ends
"""

import asyncio
import random
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import grpc

PATH = "/bare.Refusals/Refuse"
CALLS_PER_S = 20.0


@asynccontextmanager
async def bare_refusals() -> AsyncIterator[list[float]]:
    """Seconds that its refusals took, longer and longer while the context lasts."""
    command = (sys.executable, "-m", "benchmarks.bare_refusals")
    server = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert server.stdin is not None and server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        seconds: list[float] = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calling = asyncio.create_task(call(channel, seconds))
            try:
                yield seconds
            finally:
                calling.cancel()
                with suppress(asyncio.CancelledError):
                    await calling  # Raises what went wrong.
    finally:
        server.stdin.close()
        await server.wait()


async def call(channel: grpc.aio.Channel, seconds: list[float]) -> NoReturn:
    """One after the other, as streams, which is what pictures are asked for with."""
    source = random.Random(1)
    await refused(channel)  # It connects.
    while True:
        await asyncio.sleep(source.expovariate(CALLS_PER_S))
        began = time.perf_counter()
        await refused(channel)
        seconds.append(time.perf_counter() - began)


async def refused(channel: grpc.aio.Channel) -> None:
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


if __name__ == "__main__":
    asyncio.run(serve())
