"""Test the supervisor over real processes that hold only the rpc kit."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pentimento.domain.clock import Backoff
from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import ProcessState, RestartPolicy, SupervisedProcess, Surroundings
from pentimento.supervisor.scaling import GroupStatus, ReplicaFiles
from pentimento.supervisor.state import marked_processes
from pentimento.supervisor.suite_settings import ProcessSpec, ReplicaGroup, Suite
from pentimento.supervisor.supervisor import Supervisor
from tests.support.processes import runs
from tests.support.waiting import until

DEVICES = ("4", "5")
POLICY = RestartPolicy(delays=Backoff(0.01, 0.02), give_up_after=4)


@pytest.fixture(autouse=True)
def toy_on_the_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
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
    running = asyncio.create_task(supervisor.run(lambda _: ready.set()))
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


def named(supervisor: Supervisor, name: str) -> SupervisedProcess:
    return next(process for process in supervisor.processes if process.spec.name == name)


@pytest.mark.slow
async def test_stop_drains_callers_before_those_they_call(tmp_path: Path) -> None:
    stages = [toy(tmp_path, "controller", 3), toy(tmp_path, "worker", 1), toy(tmp_path, "frontdoor", 0)]
    supervisor = supervisor_of(tmp_path, *stages)

    async with serving(supervisor) as running:
        supervisor.request_stop()
        code = await running

    assert code == 0
    assert (tmp_path / "diary").read_text().split() == ["frontdoor", "worker", "controller"]
    assert marked_processes(tmp_path) == []


async def test_slow_start_is_reported_with_its_last_line_if_it_wrote_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = toy(tmp_path, "worker", 1, "--slow")
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0), slow, tell_every_s=0.05)
    running = asyncio.create_task(supervisor.run(lambda _: pytest.fail("must not serve")))
    shown = ""

    def reported() -> bool:
        nonlocal shown
        shown += capfd.readouterr().out
        return "worker is still starting; its last line: loading the model" in shown

    await until(reported)

    assert "its last line: \n" not in shown
    supervisor.request_kill()
    await running
    supervisor.view.close()


async def test_suite_whose_workers_do_not_arrive_ends_with_reason(tmp_path: Path, capfd: Any) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0))

    async def arrival() -> str:
        return "worker-0 did not register"

    code = await supervisor.run(lambda _: pytest.fail("must not serve"), None, arrival)

    supervisor.view.close()
    assert code == 1
    told = capfd.readouterr()
    assert "frontdoor serves after" in told.out
    assert "worker-0 did not register" in told.err


async def test_stop_ends_wait_for_workers(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0))
    asked = asyncio.Event()

    async def arrival() -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    running = asyncio.create_task(supervisor.run(lambda _: pytest.fail("must not serve"), None, arrival))
    await asked.wait()
    supervisor.request_stop()

    assert await running == 0
    supervisor.view.close()


@pytest.mark.slow
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


@pytest.mark.slow
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
        await until(lambda: not runs(child))


async def test_refused_start_stops_the_suite_with_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0), toy(tmp_path, "worker", 1, "--refuse"))

    code = await supervisor.run(lambda _: pytest.fail("must not serve"))

    supervisor.view.close()
    assert code == 1
    assert "weights.safetensors is corrupt" in capfd.readouterr().err
    assert marked_processes(tmp_path) == []


async def test_second_stop_request_kills_undrained_processes(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "frontdoor", 0, "--stubborn"))

    async with serving(supervisor) as running:
        supervisor.request_stop()
        supervisor.request_stop()
        await running

    assert marked_processes(tmp_path) == []


async def test_process_that_does_not_stop_in_time_is_killed_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stubborn = toy(tmp_path, "worker-1", 0, "--stubborn")
    supervisor = supervisor_of(tmp_path, toy(tmp_path, "worker-0", 0), stubborn, stop_timeout_s=1.0)

    async with serving(supervisor) as running:
        named(supervisor, "worker-0").stop()
        await until(lambda: named(supervisor, "worker-0").state is ProcessState.STOPPED)
        supervisor.request_stop()
        await running

    assert marked_processes(tmp_path) == []
    told = capfd.readouterr().err
    assert "│ worker-1 did not stop within 1 s" in told and "worker-0 did not stop" not in told


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_processes_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))

    parent.kill()
    parent.wait()

    # The process that adopts orphans here may leave it a zombie: it only must not run.
    end = time.monotonic() + 120
    while runs(child):
        assert time.monotonic() < end
        time.sleep(0.01)
    parent.stdout.close()


PARENT = """
import os, subprocess, sys
from pentimento.supervisor.child import LAUNCHER
sleeper = [sys.executable, "-c", "print(__import__('os').getpid(), flush=True); import time; time.sleep(600)"]
subprocess.run([sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *sleeper])
"""


@asynccontextmanager
async def scalable(tmp_path: Path, count: int, *flags: str) -> AsyncIterator[tuple[Supervisor, ReplicaFiles]]:
    """Serve a frontdoor and `count` workers; added workers have the flags."""

    def worker(number: int) -> ProcessSpec:
        spec = toy(tmp_path, f"worker-{number}", 1, *(flags if number >= count else ()))
        return replace(spec, devices=DEVICES)

    group, files = ReplicaGroup("worker", worker, count), ReplicaFiles(tmp_path)
    (tmp_path / "logs").mkdir(exist_ok=True)
    around = Surroundings(str(tmp_path), LogView(tmp_path / "logs", show=False, width=9), POLICY)
    suite = Suite((toy(tmp_path, "frontdoor", 0), *group.specs), (group,))
    supervisor, ready = Supervisor(suite, around, stop_timeout_s=20.0), asyncio.Event()
    running = asyncio.create_task(supervisor.run(lambda _: ready.set(), files))
    try:
        await ready.wait()
        yield supervisor, files
    finally:
        supervisor.request_stop()
        assert await running == 0
        supervisor.view.close()


def want(supervisor: Supervisor, files: ReplicaFiles, count: int) -> None:
    files.want("worker", count)
    supervisor.request_scaling()


@pytest.mark.slow
async def test_more_processes_come_and_go_again_by_draining(tmp_path: Path) -> None:
    async with scalable(tmp_path, 1) as (supervisor, files):
        assert files.there() == {"worker": GroupStatus(1, {"worker-0": "serving"})}

        want(supervisor, files, 3)
        assert not files.there()["worker"].settled
        await until(lambda: files.there()["worker"].settled)
        assert list(files.there()["worker"].states) == ["worker-0", "worker-1", "worker-2"]
        seen = {process.spec.name: psutil.Process(process.pid).environ() for process in supervisor.processes}
        gpus = {name: environ.get("CUDA_VISIBLE_DEVICES") for name, environ in seen.items()}
        assert gpus == {"frontdoor": None, "worker-0": "4", "worker-1": "5", "worker-2": "4"}

        want(supervisor, files, 1)
        assert files.there()["worker"].states == {
            "worker-0": "serving",
            "worker-1": "stopping",
            "worker-2": "stopping",
        }
        await until(lambda: files.there()["worker"].settled)
        assert sorted((tmp_path / "diary").read_text().split()) == ["worker-1", "worker-2"]
        assert {process.spec.name for process in supervisor.processes} == {"frontdoor", "worker-0"}

    assert (tmp_path / "diary").read_text().split()[2:] == ["frontdoor", "worker-0"]


@pytest.mark.slow
async def test_one_that_still_drains_keeps_its_number(tmp_path: Path) -> None:
    async with scalable(tmp_path, 2) as (supervisor, files):
        want(supervisor, files, 1)
        want(supervisor, files, 2)
        assert set(files.there()["worker"].states) == {"worker-0", "worker-1", "worker-2"}
        await until(lambda: files.there()["worker"].settled)
        assert set(files.there()["worker"].states) == {"worker-0", "worker-2"}


async def test_one_that_has_left_while_the_suite_stops_keeps_no_other_from_draining(tmp_path: Path) -> None:
    async with scalable(tmp_path, 2) as (supervisor, files):
        frontdoor, worker = named(supervisor, "frontdoor"), named(supervisor, "worker-0")
        assert frontdoor.pid is not None
        os.kill(frontdoor.pid, signal.SIGSTOP)
        want(supervisor, files, 1)
        supervisor.request_stop()
        await until(lambda: list(files.there()["worker"].states) == ["worker-0"])
        os.kill(frontdoor.pid, signal.SIGCONT)
        await until(lambda: worker.state is ProcessState.STOPPED)

    assert (tmp_path / "diary").read_text().split() == ["worker-1", "frontdoor", "worker-0"]


@pytest.mark.slow
async def test_added_process_that_refuses_to_start_is_retried_on_request(tmp_path: Path) -> None:
    async with scalable(tmp_path, 1, "--refuse") as (supervisor, files):
        want(supervisor, files, 2)
        await until(lambda: bool(files.there()["worker"].failures))

        status = files.there()["worker"]
        assert status.wanted == 1 and status.settled
        assert "weights.safetensors is corrupt" in status.failures["worker-1"]
        assert {process.spec.name for process in supervisor.processes} == {"frontdoor", "worker-0"}

        supervisor.request_scaling()

        assert set(files.there()["worker"].states) == {"worker-0"}
        # Asked again, it is tried again.
        want(supervisor, files, 2)
        assert set(files.there()["worker"].states) == {"worker-0", "worker-1"}


@pytest.mark.slow
async def test_one_that_was_added_is_started_again_when_it_is_killed(tmp_path: Path) -> None:
    async with scalable(tmp_path, 1) as (supervisor, files):
        want(supervisor, files, 2)
        await until(lambda: files.there()["worker"].settled)
        added = named(supervisor, "worker-1")
        first = added.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: added.pid not in (None, first) and added.state is ProcessState.SERVING)


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"worker": 0}', '{"worker": true}', '{"nobody": 2}'])
async def test_what_cannot_be_wanted_changes_nothing(tmp_path: Path, text: str) -> None:
    async with scalable(tmp_path, 1) as (supervisor, files):
        (tmp_path / "wanted.json").write_text(text)
        supervisor.request_scaling()
        assert files.there() == {"worker": GroupStatus(1, {"worker-0": "serving"})}
