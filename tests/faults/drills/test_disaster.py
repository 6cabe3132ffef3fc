"""Lose everything that a suite has stored, and restore it from a backup that was made under load."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from lab.fixtures.postgresql import PostgresqlServer
from pentimento import AsyncClient, ImageRequest
from pentimento.clients.image import ImageClient
from pentimento.domain.image_request import CacheMode
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import GeneratedImage
from pentimento.stores.objects import open_objects
from pentimento.supervisor.local import LocalSuite, local_suite
from tests.faults.frontdoor.processes import Processes, kill, processes, serving
from tests.support.calls import last_completed
from tests.support.processes import ROOT

pytestmark = pytest.mark.faults

LEDGERS = ("frontdoor", "gateway", "controller")
REQUEST = ImageRequest("a small blue star in the centre on a black background", num_inference_steps=20)


@pytest.fixture
def running() -> Iterator[Processes]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder, processes(Path(folder)) as started:
        yield started


async def command(name: str, folder: Path, ledger_urls: list[str], objects_url: str) -> None:
    """Run `pentimento backup` or `pentimento restore`."""
    ledgers = [word for url in ledger_urls for word in ("--ledger-url", url)]
    words = (sys.executable, "-m", "pentimento.cli", name, str(folder), *ledgers, "--objects-url", objects_url)
    await asyncio.to_thread(subprocess.run, words, cwd=ROOT, check=True)


async def under_load(ask: Callable[[int], Awaitable[object]], work: Awaitable[None]) -> int:
    """Await the work while two callers send requests one after the other; return the number of answers."""
    numbers, answered = count(), []

    async def call() -> None:
        while True:
            answered.append(await ask(next(numbers)))

    callers = [asyncio.create_task(call()) for _ in range(2)]
    await work
    for caller in callers:
        caller.cancel()
    for ended in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError), ended
    return len(answered)


def stores_of(suite_state: Path) -> tuple[list[str], str]:
    return [f"sqlite:///{suite_state}/{name}.sqlite" for name in LEDGERS], f"file://{suite_state}/objects"


def killed(suite: LocalSuite) -> None:
    """Kill the supervisor; its processes end with it."""
    suite.supervisor.kill()
    suite.supervisor.wait()


async def until_cached(client: AsyncClient, wanted: ImageRequest) -> GeneratedImage:
    """Repeat a request until it starts from the cache: an entry is committed after its image was answered."""
    while not (image := await client.generate(wanted)).provenance.steps_saved:
        pass
    return image


async def test_suite_restored_from_a_backup_under_load_answers_keys_and_hits_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Waits that a busy machine cannot exceed: without a vector an image would leave nothing in the cache.
    monkeypatch.setenv("PENTIMENTO_FRONTDOOR_PART_WAIT_FACTOR", "300")
    state, backup = tmp_path / "state", tmp_path / "backup"
    with local_suite(state_dir=state) as suite:
        async with AsyncClient(suite.endpoint.frontdoor) as client:
            done = {
                f"done-{seed}": await client.generate(replace(REQUEST, seed=seed), idempotency_key=f"done-{seed}")
                for seed in range(3)
            }
            await until_cached(client, replace(REQUEST, seed=9))
            unfinished = {}
            for number in range(4):
                asked = replace(REQUEST, prompt=f"{number} golden rings", num_inference_steps=100, seed=number)
                unfinished[f"open-{number}"] = asked, await client.submit(asked, idempotency_key=f"open-{number}")

            async def ask(number: int) -> GeneratedImage:
                return await client.generate(replace(REQUEST, seed=100 + number, num_inference_steps=4))

            assert await under_load(ask, command("backup", backup, *stores_of(state)))
            later = await client.generate(replace(REQUEST, seed=50), idempotency_key="later")
        killed(suite)
    shutil.rmtree(state)

    await command("restore", backup, *stores_of(state))

    with local_suite(state_dir=state) as suite:
        async with AsyncClient(suite.endpoint.frontdoor) as client:
            again = {
                key: await client.generate(replace(REQUEST, seed=seed), idempotency_key=key)
                for seed, key in enumerate(done)
            }
            assert {key: (one.provenance.request_id, one.data) for key, one in again.items()} == {
                key: (one.provenance.request_id, one.data) for key, one in done.items()
            }
            # It reads only: nothing but an entry of the backup can serve it.
            await until_cached(client, replace(REQUEST, seed=10, cache=CacheMode.READ))
            for key, (asked, accepted) in unfinished.items():
                assert (await client.submit(asked, idempotency_key=key)).request_id == accepted.request_id
                await client.wait(accepted.request_id)
            once_more = await client.generate(replace(REQUEST, seed=50), idempotency_key="later")
            assert once_more.provenance.request_id != later.provenance.request_id


async def test_production_stores_restored_from_a_backup_under_load_answer_their_keys(
    tmp_path: Path, running: Processes, postgresql: PostgresqlServer, s3_endpoint: str
) -> None:
    ledger = postgresql.new_database()
    objects = f"s3://disaster/suite?endpoint={s3_endpoint}&create_bucket=true"
    flags = ("--ledger-url", ledger, "--objects-url", objects)
    request = ImageRequest("a red circle", num_inference_steps=30, seed=1)
    running.worker("w1", step_s=0.01)
    frontdoor = running.frontdoor("w1", flags=flags)
    await serving(running.address("f"))
    async with open_channel(running.address("f"), RpcChannelSettings()) as channel:
        client = ImageClient(channel)
        done = {
            f"done-{number}": await last_completed(client.generate(request, f"done-{number}")) for number in range(3)
        }
        long = replace(request, num_inference_steps=150)
        unfinished = {key: await client.submit(long, key) for key in ("open-0", "open-1", "open-2", "open-3")}

        async def ask(number: int) -> object:
            # The queue takes 256.
            return await (client.submit(request, f"load-{number}") if number < 100 else asyncio.sleep(0.05))

        assert await under_load(ask, command("backup", tmp_path / "backup", [ledger], objects))
        later = await client.submit(request, "later")
        kill(frontdoor)
    store, schema = open_objects(objects), ledger.rpartition("%3D")[2]
    for key in list(store.keys()):
        store.delete(key)
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE")
    postgresql.execute(f"CREATE SCHEMA {schema}")

    await command("restore", tmp_path / "backup", [ledger], objects)

    # The same worker: it has served the lost journal, and must accept the restored one.
    running.frontdoor("w1", flags=flags)
    await serving(running.address("f"))
    async with open_channel(running.address("f"), RpcChannelSettings()) as channel:
        client = ImageClient(channel)
        for key, completed in done.items():
            assert await last_completed(client.generate(request, key)) == completed
        for key, accepted in unfinished.items():
            assert await client.submit(long, key) == replace(accepted, replayed=True)
            await last_completed(client.attach(accepted.request_id))
        assert (await client.submit(request, "later")).request_id != later.request_id
    assert "OBJECTS_DISPUTED" not in (running.folder / "frontdoor.log").read_text()
