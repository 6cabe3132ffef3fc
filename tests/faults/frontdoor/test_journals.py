"""Test a lost or restored journal, and invented epochs: a real worker keeps serving without a restart."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import GetStatusResponse
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.faults.frontdoor.processes import Processes, kill, processes, serving
from tests.support.calls import last_completed
from tests.support.processes import ROOT

pytestmark = pytest.mark.faults

REQUEST = ImageRequest(prompt="a red circle", num_inference_steps=2, seed=1)


@pytest.fixture(scope="module")
def running() -> Iterator[Processes]:
    """Share one worker among the tests of this module: each test inherits the epochs that the worker has seen."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder, processes(Path(folder)) as started:
        started.real_worker("w1", write_checkpoint(Path(folder) / "model"))
        yield started


@pytest.fixture
async def worker(running: Processes) -> AsyncIterator[WorkerClient]:
    await serving(running.address("w1"))
    async with open_channel(running.address("w1"), RpcChannelSettings()) as channel:
        yield WorkerClient(channel)


async def generate(running: Processes) -> None:
    async with open_channel(running.address("f"), RpcChannelSettings()) as channel:
        await last_completed(ImageClient(channel).generate(REQUEST))


async def status(running: Processes) -> GetStatusResponse:
    async with open_channel(running.address("f"), RpcChannelSettings()) as channel:
        return await FrontdoorClient(channel).status()


async def restart_and_generate(running: Processes, *flags: str) -> None:
    """Run a frontdoor over the existing journal until it has generated one image, then kill it."""
    frontdoor = running.frontdoor("w1", flags=flags)
    await serving(running.address("f"))
    await generate(running)
    kill(frontdoor)


async def test_lost_journal_needs_no_restart_of_workers(running: Processes, worker: WorkerClient) -> None:
    for _ in range(2):
        await restart_and_generate(running)

    for file in running.folder.glob("journal.sqlite*"):
        file.unlink()

    await restart_and_generate(running)


async def test_a_journal_that_was_restored_costs_no_restart_of_workers(
    running: Processes, worker: WorkerClient
) -> None:
    await restart_and_generate(running)
    backup = shutil.copy(running.folder / "journal.sqlite", running.folder / "backup")
    await restart_and_generate(running)

    for file in running.folder.glob("journal.sqlite*"):
        file.unlink()
    shutil.copy(backup, running.folder / "journal.sqlite")

    await restart_and_generate(running)


async def test_impossible_epoch_changes_nothing(running: Processes, worker: WorkerClient) -> None:
    with pytest.raises(InvalidArgument, match="frontdoor_epoch"):
        async for _ in worker.attach("request", 1, "frontdoor", 2**64 - 1):
            pass

    await restart_and_generate(running)


async def test_refused_frontdoor_reports_it_until_journal_is_renewed(running: Processes, worker: WorkerClient) -> None:
    """Present a later epoch, as after a restore on a machine with a wrong clock."""
    far = int(time.time() * 1000) + 3_600_000
    await anext(worker.watch_credits("frontdoor", far, "another journal"))
    frontdoor = running.frontdoor("w1", flags=("--worker-wait-s", "0"))
    await serving(running.address("f"))
    while not (refusing := (await status(running)).refusing_workers):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.02)
    assert (refusing[0].address, refusing[0].reason) == (running.address("w1"), "STALE_EPOCH")
    assert str(far) in refusing[0].message

    ledger = ("--ledger-url", f"sqlite:///{running.folder / 'journal.sqlite'}")
    command = (sys.executable, "-m", "pentimento.cli", "journal", "renew", *ledger, "--above", str(far))
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True)

    assert await asyncio.to_thread(frontdoor.wait) == 0
    await restart_and_generate(running)
    assert "pentimento journal renew" in (running.folder / "frontdoor.log").read_text()
