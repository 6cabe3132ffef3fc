"""Kill a gateway (-9) at random moments of reserve, upload and commit: no acknowledged entry is lost or dangling."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from lab.fixtures import bounded_gateway
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import CapturedEntries, CapturedLatent, FromLatent
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.stores.objects import ObjectStore, open_objects
from tests.support.gateways import attempt, embedding, running_gateway, scope

pytestmark = pytest.mark.faults

# CONTRIBUTING.md names it; a kill took 8 s on a busy machine, mostly the next start.
KILL_COUNT = int(os.environ.get("GATEWAY_KILL_COUNT", "12"))
WRITER_COUNT = 3
TIMEOUT_S = 120.0


@dataclass
class Record:
    """Record the entries with an answered commit, by id; `answers` announces each."""

    committed: dict[str, Embedding] = field(default_factory=dict)
    answers: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def add(self, entry_id: str, text: Embedding) -> None:
        self.committed[entry_id] = text
        self.answers.put_nowait(entry_id)


@asynccontextmanager
async def gateway_process(directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a real gateway on embedded stores in the directory; kill it at the end."""
    flags = {
        "--listen": f"unix:{directory}/gateway.sock",
        "--index-url": f"edge://{directory}/index",
        "--objects-url": f"file://{directory}/objects",
        "--ledger-url": f"sqlite:///{directory}/ledger.sqlite",
        "--bounds": "maintenance_interval_s=0.02,reconcile_interval_s=0.05,object_grace_s=0,min_free_bytes=0",
        "--log-level": "error",
    }
    words = [*bounded_gateway.NIRVANA_FLAGS, *(word for pair in flags.items() for word in pair)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", bounded_gateway.MODULE, *words)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def write_entries(client: GatewayClient, objects: ObjectStore, record: Record) -> None:
    """Write one entry after another until the gateway ends."""
    with suppress(PentimentoError):
        while True:
            by, text = attempt(), embedding()
            grant = await client.reserve(scope(), by)
            if grant is None:
                # A ledger that was blocked for a second grants nothing; the caller counts the committed entries.
                continue
            latents = []
            for slot in grant.latents:
                await asyncio.sleep(0)
                reference = objects.put(slot.key, slot.key.encode(), durable=False)
                latents.append(CapturedLatent(slot.resume_step, 1.0, reference, True))
            captured = CapturedEntries(grant.grant_id, tuple(latents))
            record.add(await client.commit(scope(), by, captured, text), text)


async def run_and_kill(directory: Path, record: Record, after_entry_count: int, delay_s: float) -> None:
    """Write to a new process, and kill it a moment after `after_entry_count` more entries were committed."""
    async with gateway_process(directory) as process:
        channel = open_channel(f"unix:{directory}/gateway.sock", RpcChannelSettings())
        await wait_until_answering(channel)
        objects = open_objects(f"file://{directory}/objects")
        writers = [
            asyncio.create_task(write_entries(GatewayClient(channel), objects, record)) for _ in range(WRITER_COUNT)
        ]
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(after_entry_count):
                await record.answers.get()
        await asyncio.sleep(delay_s)
        process.kill()
        await asyncio.gather(*writers)
        await channel.close()


async def wait_until_answering(channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await GatewayClient(channel).statistics()
                return
            except PentimentoError:
                await asyncio.sleep(0.01)


@pytest.mark.timeout(300 + 10 * KILL_COUNT)
async def test_nothing_acknowledged_is_lost_and_nothing_dangles(short_directory: Path) -> None:
    chance, record = random.Random(7), Record()
    for _ in range(KILL_COUNT):
        await run_and_kill(short_directory, record, chance.randint(1, 4), chance.uniform(0, 0.02))

    async with running_gateway(short_directory) as gateway:
        # Fail on errors that a round of maintenance would only log, such as a missing index.
        await asyncio.to_thread(gateway.process.indexing.index_new)
        gateway.maintain()

        assert gateway.problems() == []
        assert len(record.committed) >= KILL_COUNT
        for entry_id, text in record.committed.items():
            start = (await gateway.lookup(text)).start
            assert isinstance(start, FromLatent)
            assert start.donor.entry_id == entry_id
            assert gateway.process.stores.objects.get(start.latent) == start.latent.key.encode()
