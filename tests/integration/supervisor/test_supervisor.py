"""The supervisor over real processes that hold nothing but the rpc kit."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pentimento.domain.backoff import Backoff
from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.leftovers import MARK, clean_leftovers, marked_processes
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import ProcessState, SupervisedProcess, Surroundings
from pentimento.supervisor.restarts import RestartPolicy
from pentimento.supervisor.suite import ProcessSpec, Suite
from pentimento.supervisor.supervisor import Supervisor

POLICY = RestartPolicy(delays=Backoff(0.01, 0.02), give_up_after=4)


@pytest.fixture(autouse=True)
def toy_on_the_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def toy(tmp_path: Path, name: str, stage: int, *flags: str) -> ProcessSpec:
    address = f"unix:{tmp_path}/{name}.sock"
    arguments = ("--listen", address, "--diary", str(tmp_path / "diary"), *flags)
    return ProcessSpec(name, "toy_service", arguments, address, stage)


def supervisor_of(tmp_path: Path, *processes: ProcessSpec, **times: float) -> Supervisor:
    (tmp_path / "logs").mkdir(exist_ok=True)
    view = LogView(tmp_path / "logs", show=False, width=9)
    return Supervisor(Suite(processes), Surroundings(str(tmp_path), view, POLICY), **{"stop_timeout_s": 20.0, **times})


@asynccontextmanager
async def serving(supervisor: Supervisor) -> AsyncIterator["asyncio.Task[int]"]:
    """Inside, all processes serve; the task ends with the suite."""
    ready = asyncio.Event()
    running = asyncio.create_task(supervisor.run(ready.set))
    serves = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({serves, running}, return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set(), "the suite ended before it served"
        yield running
    finally:
        serves.cancel()
        supervisor.request_kill()
        await running
        supervisor.view.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.01)


def named(supervisor: Supervisor, name: str) -> SupervisedProcess:
    return next(process for process in supervisor.processes if process.spec.name == name)


async def test_stop_drains_callers_before_those_they_call(tmp_path: Path) -> None:
    stages = [toy(tmp_path, "controller", 3), toy(tmp_path, "worker", 1), toy(tmp_path, "frontdoor", 0)]
    supervisor = supervisor_of(tmp_path, *stages)

    async with serving(supervisor) as running:
        supervisor.request_stop()
        code = await running

    assert code == 0
    assert (tmp_path / "diary").read_text().split() == ["frontdoor", "worker", "controller"]
    assert marked_processes(tmp_path) == []


async def test_whoever_waits_for_a_slow_start_hears_whom_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    slow = toy(tmp_path, "worker", 1, "--slow")
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0), slow, tell_every_s=0.05)
    running = asyncio.create_task(supervisor.run(lambda: pytest.fail("must not serve")))

    await until(lambda: "worker is still starting; its last line: loading the model" in capfd.readouterr().out)

    supervisor.request_kill()
    await running
    supervisor.view.close()


async def test_killed_process_serves_again(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0))

    async with serving(supervisor):
        process = named(supervisor, "frontdoor")
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.pid not in (None, first) and process.state is ProcessState.SERVING)


async def test_a_process_that_has_served_is_started_again_however_often_it_is_killed(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0))

    async with serving(supervisor):
        process = named(supervisor, "frontdoor")
        for _ in range(POLICY.give_up_after + 1):
            killed = process.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            await until(
                lambda killed=killed: process.pid not in (None, killed) and process.state is ProcessState.SERVING
            )


async def test_a_process_that_could_not_be_made_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0))
    failures = iter([OSError(errno.ENOMEM, "Cannot allocate memory")] * 2)

    async def scarce(*arguments: Any) -> Child:
        if (error := next(failures, None)) is not None:
            raise error
        return await start_child(*arguments)

    async with serving(supervisor):
        process = named(supervisor, "frontdoor")
        first = process.pid
        assert first is not None
        monkeypatch.setattr("pentimento.supervisor.process.start_child", scarce)
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.pid not in (None, first) and process.state is ProcessState.SERVING)

    assert next(failures, None) is None


async def test_children_of_a_killed_process_end_with_it(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0, "--child"))

    async with serving(supervisor):
        process = named(supervisor, "frontdoor")
        assert process.pid is not None
        (child,) = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_refused_start_stops_the_suite_with_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0), toy(tmp_path, "worker", 1, "--refuse"))

    code = await supervisor.run(lambda: pytest.fail("must not serve"))

    supervisor.view.close()
    assert code == 1
    assert "weights.safetensors is corrupt" in capfd.readouterr().err
    assert marked_processes(tmp_path) == []


async def test_second_request_to_stop_kills_what_does_not_drain(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0, "--stubborn"))

    async with serving(supervisor) as running:
        supervisor.request_stop()
        supervisor.request_stop()
        await running

    assert marked_processes(tmp_path) == []


async def test_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0, "--stubborn"), stop_timeout_s=0.1)

    async with serving(supervisor) as running:
        supervisor.request_stop()
        await running

    assert marked_processes(tmp_path) == []


def test_leftovers_are_ended_and_their_sockets_removed(tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    (sockets / "frontdoor.sock").touch()
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    left = subprocess.Popen(sleeper, env={**os.environ, MARK: str(tmp_path / "state")})

    count = clean_leftovers(tmp_path / "state", sockets)

    assert count == 1
    assert left.poll() is not None
    assert not sockets.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_processes_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))

    parent.kill()
    parent.wait(10)

    # Whoever adopts orphans here may leave it a zombie: what counts is that it runs no more.
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    parent.stdout.close()


PARENT = """
import os, subprocess, sys
from pentimento.supervisor.child import LAUNCHER
sleeper = [sys.executable, "-c", "print(__import__('os').getpid(), flush=True); import time; time.sleep(600)"]
subprocess.run([sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *sleeper])
"""
