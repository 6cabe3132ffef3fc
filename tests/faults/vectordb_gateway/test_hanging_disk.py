"""Hang the ledger's disk under a real gateway: its loop answers, lookups miss in time, health reports it, no data is
lost.

Another process holds SQLite's own locks of the ledger's files, so that every read, or every write, waits inside SQLite
until its timeout, and then waits again.
"""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.clients.gateway import GatewayClient
from pentimento.domain.cache import LookupAnswer, LookupCandidate
from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.faults.vectordb_gateway.test_killed_gateway import gateway_process
from tests.support.gateways import attempt, embedding, running_gateway, scope

pytestmark = pytest.mark.faults

TIMEOUT_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Locks the readers' bytes of the `-shm` file, which all connections of the ledger share (SQLite, walformat).
_HOLD_READS = """
import fcntl, sys
file = open(sys.argv[1] + "-shm", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 5, 123)
print("held", flush=True)
sys.stdin.read()
"""
_HOLD_WRITES = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(script: str, ledger: Path) -> Iterator[None]:
    """Hold the locks in another process during the block."""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ledger)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.stdin.close()
        holder.wait(TIMEOUT_S)


class Health:
    """Read the gateway's health."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = health_pb2_grpc.HealthStub(channel)

    async def becomes(self, status: int) -> None:
        """Wait for a health status."""
        async with asyncio.timeout(TIMEOUT_S):
            async for answer in self._stub.Watch(health_pb2.HealthCheckRequest()):
                if answer.status == status:
                    return

    async def now(self) -> int:
        answer = await self._stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        return int(answer.status)


@asynccontextmanager
async def filled_gateway(directory: Path) -> AsyncIterator[tuple[GatewayClient, Health]]:
    """Run a gateway process that holds an entry near `embedding(1)`."""
    async with running_gateway(directory) as filling:
        await filling.store(embedding(1))
    async with gateway_process(directory):
        channel = open_channel(f"unix:{directory}/gateway.sock", RpcChannelSettings())
        health = Health(channel)
        await _there(health)
        yield GatewayClient(channel), health
        await channel.close()


async def _there(health: Health) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await health.becomes(SERVING)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
            else:
                return


async def look_up(client: GatewayClient) -> LookupAnswer:
    return await client.lookup([LookupCandidate(scope())], embedding(1), timeout_s=TIMEOUT_S)


async def test_hanging_reads_give_misses_and_not_serving(tmp_path: Path) -> None:
    async with filled_gateway(tmp_path) as (client, health):
        await _hits(client)

        with held(_HOLD_READS, tmp_path / "ledger.sqlite"):
            answers = await asyncio.gather(*(look_up(client) for _ in range(40)))
            # The loop answers with any status, because it waits for no file.
            await health.now()
            await health.becomes(NOT_SERVING)
            answers += await asyncio.gather(*(look_up(client) for _ in range(40)))

        assert all(answer.search_skipped and answer.starts[0].start == FromNoise() for answer in answers)
        await health.becomes(SERVING)
        await _hits(client)
    assert _contradictions(tmp_path) == []


async def test_hanging_writes_keep_hits_and_lose_only_unpromised_entries(tmp_path: Path) -> None:
    async with filled_gateway(tmp_path) as (client, health):
        await _hits(client)

        with held(_HOLD_WRITES, tmp_path / "ledger.sqlite"):
            by = attempt()
            reserving = asyncio.create_task(client.reserve(scope(), by, timeout_s=TIMEOUT_S))
            # Lookups do not need the writer.
            await _hits(client)
            assert await reserving is None
            await health.becomes(NOT_SERVING)

        await health.becomes(SERVING)
        assert await client.reserve(scope(), attempt(), timeout_s=TIMEOUT_S) is not None
        await _hits(client)
    assert _contradictions(tmp_path) == []


async def _hits(client: GatewayClient) -> None:
    """Wait until a lookup hits: one may time out on a busy machine."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if isinstance((await look_up(client)).starts[0].start, FromLatent):
                return
            await asyncio.sleep(0.02)


def _contradictions(directory: Path) -> list[str]:
    with sqlite3.connect(directory / "ledger.sqlite") as connection:
        found = connection.execute("PRAGMA integrity_check").fetchall()
        count = connection.execute("SELECT count(*) FROM cache_entries WHERE doomed_at IS NULL").fetchone()[0]
    return [] if (found, count) == ([("ok",)], 1) else [f"{found}, {count} entries"]
