"""The life of a service's process, from start to stop."""

import asyncio
import errno
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pentimento.clients.controller import Registration
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaLease, ReplicaReport
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.service.process import ServiceProcess
from pentimento.telemetry.logs import TextFormatter
from tests.support.logged import said_by

REPLICA = Replica("e1", ReplicaKind.EMBEDDER, "unix:/e1", 7)


@dataclass
class NotedFleet:
    """A controller that records registrations and departures."""

    notes: list[str]
    registered: asyncio.Event = field(default_factory=asyncio.Event)

    async def register(self, replica: Replica) -> ReplicaLease:
        self.notes.append("registered")
        self.registered.set()
        return ReplicaLease(60_000, 20_000, 1)

    async def report(self, report: ReplicaReport) -> None:
        raise AssertionError("the first report is due in twenty seconds")

    async def deregister(self, instance_id: str, generation: int) -> None:
        self.notes.append("deregistered")


@dataclass(kw_only=True)
class NotedProcess(ServiceProcess):
    notes: list[str]

    async def prepare(self) -> None:
        self.notes.append("prepared")
        self.run_beside(self._wait, "waiting")

    async def finish(self) -> None:
        self.notes.append("finished")

    async def close(self) -> None:
        self.notes.append("closed")

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.notes.append("background ended")


def server(folder: Path) -> RpcServer:
    return RpcServer(RpcServerSettings(listen=(f"unix:{folder / 's'}",)), "embedder")


async def test_it_prepares_before_it_joins_and_finishes_before_it_leaves(tmp_path: Path) -> None:
    notes: list[str] = []
    fleet = NotedFleet(notes)
    registration = Registration(fleet, lambda: REPLICA, lambda: ReplicaReport("e1", 7))
    process = NotedProcess(server=server(tmp_path), registration=registration, notes=notes)

    await process.warm()
    await fleet.registered.wait()
    await process.drain()

    assert notes == ["prepared", "registered", "background ended", "finished", "deregistered"]


async def test_work_until_close_continues_during_drain(tmp_path: Path) -> None:
    process = NotedProcess(server=server(tmp_path), notes=[])
    process.server.run_until_stopped = lambda warm, drain: drain()  # type: ignore[method-assign]

    process.run_until_closed(process._wait, "waiting")
    await asyncio.sleep(0)
    await process.run()

    assert process.notes == ["finished", "background ended", "closed"]


async def test_without_a_controller_it_serves_alone(tmp_path: Path) -> None:
    process = NotedProcess(server=server(tmp_path), notes=[])

    await process.warm()
    await asyncio.sleep(0)
    await process.drain()

    assert process.notes == ["prepared", "background ended", "finished"]


@pytest.mark.parametrize("how", ["run_beside", "run_until_closed"])
async def test_failed_background_work_is_logged_at_once(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("no room")

    process = NotedProcess(server=server(tmp_path), notes=[])

    getattr(process, how)(fail, "levels")
    for _ in range(2):  # it fails, and is reported
        await asyncio.sleep(0)

    (record,) = said_by("pentimento.service.process", caplog)
    line = TextFormatter("embedder", "embedder-1").format(record)
    assert record.levelname == "ERROR"
    assert "task=levels" in line and "RuntimeError" in line
    await process.drain()


@pytest.mark.parametrize("how", ["run_beside", "run_until_closed"])
async def test_background_work_begins_again_after_os_error(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pentimento.service.process._AGAIN_S", 0.0)
    begun = 0

    async def fail_twice() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise OSError(errno.EMFILE, "too many open files")

    process = NotedProcess(server=server(tmp_path), notes=[])

    getattr(process, how)(fail_twice, "levels")
    await asyncio.wait([*process._background, *process._until_closed])

    assert begun == 3
    assert [record.levelname for record in said_by("pentimento.service.process", caplog)] == ["WARNING", "WARNING"]
    await process.drain()


FAILING = """
import asyncio
import errno
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.service.process import ServiceProcess

class Failing(ServiceProcess):
    async def prepare(self):
        raise RuntimeError("no model")

    async def close(self):
        print("closed")

async def main():
    await Failing(server=RpcServer(RpcServerSettings(listen=("127.0.0.1:0",)), "embedder")).run()

asyncio.run(main())
"""


def test_a_process_that_fails_to_start_lets_go() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=False)

    assert done.stdout == "closed\n"
    assert "RuntimeError: no model" in done.stderr
