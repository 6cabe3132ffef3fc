"""Kill, stop and restart real processes, and check the fleet and the plan."""

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Fleet, Plan
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.support.processes import ROOT, Process, StartedProcesses

pytestmark = pytest.mark.faults


class Machine:
    """Start processes of one fleet, and end the remaining ones."""

    def __init__(self, folder: Path) -> None:
        self.controller_address = f"unix:{folder / 'c'}"
        self._processes = StartedProcesses()

    def controller(self) -> Process:
        flags = ["--listen", self.controller_address, "--log-level", "warning"]
        return self._processes.start("services.controller", *flags)

    def worker(self, name: str) -> Process:
        return self._processes.start("tests.faults.controller.replica_process", self.controller_address, name, "heavy")

    def close(self) -> None:
        self._processes.end()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        made = Machine(Path(folder))
        yield made
        made.close()


@pytest.fixture
async def client(machine: Machine) -> AsyncIterator[ControllerClient]:
    async with open_channel(machine.controller_address, RpcChannelSettings()) as channel:
        yield ControllerClient(channel)


async def fleet_where(client: ControllerClient, holds: Callable[[Fleet], bool]) -> Fleet:
    """Read the fleet until it satisfies `holds`; calls to a missing controller are retried."""
    async with asyncio.timeout(120):
        while True:
            try:
                fleet = await client.fleet()
                if holds(fleet):
                    return fleet
            except PentimentoError:
                pass
            await asyncio.sleep(0.05)


def live(fleet: Fleet) -> set[str]:
    return {status.replica.instance_id for status in fleet.replicas if status.live}


def planned(plan: Plan) -> set[str]:
    return {assignment.worker_id for assignment in plan.assignments}


async def test_who_holds_a_plan_sees_no_part_of_a_fleet_after_a_restart(machine, client):
    killed = machine.controller()
    for name in ("w1", "w2"):
        machine.worker(name)
    before = await fleet_where(client, lambda fleet: planned(fleet.plan) == {"w1", "w2"})

    killed.kill()
    killed.wait()
    machine.controller()
    await fleet_where(client, lambda fleet: fleet.leader_epoch > before.leader_epoch)
    async with asyncio.timeout(120), aclosing(client.watch_plan("f1", have=before.plan.version)) as plans:
        first = await anext(plans)

    assert planned(first) == {"w1", "w2"}
    assert first.version > before.plan.version


async def test_a_stopped_replica_falls_out_of_the_plan_and_comes_back(machine, client):
    machine.controller()
    stopped = machine.worker("w1")
    await fleet_where(client, lambda fleet: planned(fleet.plan) == {"w1"})

    stopped.send_signal(signal.SIGSTOP)
    await fleet_where(client, lambda fleet: planned(fleet.plan) == set())
    stopped.send_signal(signal.SIGCONT)

    await fleet_where(client, lambda fleet: planned(fleet.plan) == {"w1"})


async def test_a_stopped_controller_does_not_blame_its_fleet(machine, client):
    controller = machine.controller()
    machine.worker("w1")
    before = await fleet_where(client, lambda fleet: planned(fleet.plan) == {"w1"})

    controller.send_signal(signal.SIGSTOP)
    await asyncio.sleep(4)  # longer than a lease: the silence itself is the fault under test
    controller.send_signal(signal.SIGCONT)
    after = await fleet_where(client, lambda fleet: fleet.replicas[0].last_report_age_ms < 1500)

    assert after.plan.version == before.plan.version


async def test_a_controller_stays_small_and_loads_no_numerics(machine, client):
    controller = machine.controller()
    machine.worker("w1")
    await fleet_where(client, lambda fleet: planned(fleet.plan) == {"w1"})

    status = Path(f"/proc/{controller.pid}/status").read_text()
    maps = Path(f"/proc/{controller.pid}/maps").read_text()

    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 150 * 1024
    assert not re.search(r"libtorch|numpy|transformers|sklearn", maps)


def test_a_wrong_flag_is_one_clear_line():
    outcome = subprocess.run(
        [sys.executable, "-m", "services.controller", "--lease-s", "nan"], cwd=ROOT, capture_output=True, timeout=60
    )

    assert outcome.returncode == 2
    assert re.fullmatch(rb"controller: --lease-s [^\n]+\n", outcome.stderr)
