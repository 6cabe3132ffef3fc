"""Test several controller processes over one ledger: one leads, a standby takes over, an old leader is fenced."""

import asyncio
import signal
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.fixtures.postgresql import running_server, why_not
from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Fleet, Plan
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.service.fleet_member import PlanFollower
from pentimento.stores.ledger import open_journal
from pentimento.supervisor.process import wait_until_serving
from tests.support.processes import Process, StartedProcesses

pytestmark = pytest.mark.faults


class Controllers:
    """Start controllers over one ledger, and workers that know all controllers. Kill the remaining processes at the
    end."""

    def __init__(self, folder: Path, ledger_url: str) -> None:
        self.folder = folder
        self.ledger_url = ledger_url
        self.addresses = [f"unix:{folder / name}" for name in ("c0", "c1")]
        self._processes = StartedProcesses()

    def controller(self, number: int, *flags: str) -> Process:
        own = ["--listen", self.addresses[number], "--instance-id", f"c{number}", "--ledger-url", self.ledger_url]
        # The lease outlasts a short delay: no standby replaces a leader with a busy CPU or disk.
        times = ["--lease-s", "3", "--log-level", "error"]
        return self._processes.start("services.controller", *own, *times, *flags)

    def worker(self, name: str) -> Process:
        return self._processes.start("tests.faults.controller.replica_process", ",".join(self.addresses), name, "heavy")

    def close(self) -> None:
        self._processes.end()


@pytest.fixture(params=["sqlite", "postgresql"])
def controllers(request: pytest.FixtureRequest) -> Iterator[Controllers]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        if request.param == "sqlite":
            made = Controllers(Path(folder), f"sqlite:///{folder}/fleet.sqlite")
            yield made
            made.close()
            return
        if reason := why_not():
            pytest.skip(reason)
        with running_server() as server:
            made = Controllers(Path(folder), server.new_database())
            yield made
            made.close()


@pytest.fixture
async def followed(controllers: Controllers) -> AsyncIterator["Followed"]:
    """Follow the plans of both controllers with a frontdoor's own watch."""
    channels = [open_channel(address, RpcChannelSettings()) for address in controllers.addresses]
    client = ControllerClient(*channels)
    journal = open_journal(f"sqlite:///{controllers.folder}/journal.sqlite")
    made = Followed(PlanFollower(client, "f1", store=journal), client)
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])
    journal.close()
    for channel in channels:
        await channel.close()


class Followed:
    def __init__(self, watch: PlanFollower, client: ControllerClient) -> None:
        self.client = client
        self.plans: list[Plan] = []
        self.task = asyncio.get_running_loop().create_task(watch.run(self.plans.append))

    async def until(self, holds: Callable[[Plan], bool]) -> Plan:
        async with asyncio.timeout(120):
            while not self.plans or not holds(self.plans[-1]):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.02)
        return self.plans[-1]

    async def fleet_where(self, holds: Callable[[Fleet], bool]) -> Fleet:
        async with asyncio.timeout(120):
            while True:
                try:
                    fleet = await self.client.fleet(1.0)
                    if holds(fleet):
                        return fleet
                except PentimentoError:
                    pass
                await asyncio.sleep(0.02)


def planned(plan: Plan) -> set[str]:
    return {assignment.worker_id for assignment in plan.assignments}


async def start_standby(controllers: Controllers) -> None:
    """Wait until the second controller refuses calls as a standby. It starts while the leader is idle, so that it has
    no reason to take over before the leader ends."""
    controllers.controller(1, "--standby")
    reason = ""
    async with open_channel(controllers.addresses[1], RpcChannelSettings()) as channel, asyncio.timeout(120):
        while reason != "STANDBY":
            try:
                await ControllerClient(channel).fleet(1.0)
            except PentimentoError as refused:
                reason = refused.reason
            await asyncio.sleep(0.02)


async def test_standby_leads_after_leader_is_killed_and_plan_stays(controllers, followed):
    leader = controllers.controller(0, "--standby")
    await wait_until_serving(controllers.addresses[0])
    for name in ("w1", "w2"):
        controllers.worker(name)
    before = await followed.until(lambda plan: planned(plan) == {"w1", "w2"})
    await start_standby(controllers)

    leader.kill()
    leader.wait()
    after = await followed.until(lambda plan: plan.version.leader_epoch > before.version.leader_epoch)

    assert [planned(plan) for plan in followed.plans if plan.version >= before.version] == [{"w1", "w2"}] * 2
    assert planned(after) == {"w1", "w2"}


async def test_resumed_former_leader_is_fenced_and_ends(controllers, followed):
    stopped = controllers.controller(0, "--standby")
    await wait_until_serving(controllers.addresses[0])
    controllers.worker("w1")
    before = await followed.until(lambda plan: planned(plan) == {"w1"})
    await start_standby(controllers)

    await freeze(stopped, controllers.ledger_url)
    await followed.fleet_where(lambda fleet: fleet.leader_epoch > before.version.leader_epoch)
    after = await followed.until(lambda plan: plan.version.leader_epoch > before.version.leader_epoch)
    stopped.send_signal(signal.SIGCONT)
    await asyncio.to_thread(stopped.wait)
    controllers.worker("w2")
    last = await followed.until(lambda plan: planned(plan) == {"w1", "w2"})

    assert last.version.leader_epoch == after.version.leader_epoch
    versions = [plan.version for plan in followed.plans]
    assert versions == sorted(set(versions))


async def freeze(process: Process, ledger_url: str) -> None:
    """Stop the process. On SQLite, stop it while it does not write: without a server that ends its transaction, the
    file would stay locked as long as the process lives."""
    path = ledger_url.removeprefix("sqlite:///")
    async with asyncio.timeout(120):
        while True:
            process.send_signal(signal.SIGSTOP)
            if path == ledger_url or await asyncio.to_thread(can_be_written, path):
                return
            process.send_signal(signal.SIGCONT)


def can_be_written(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True
