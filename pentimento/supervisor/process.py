"""Supervise one process: start, watch, restart with growing pauses, and stop it."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.domain.clock import Backoff
from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.devices import environment_of
from pentimento.supervisor.output import LogView
from pentimento.supervisor.suite_settings import ProcessSpec

POLL_S = 0.05
# A channel that finds no socket must not wait the default second, and then two, before it tries again.
RECONNECT_MS = 100
OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
)


async def wait_until_serving(address: str) -> None:
    """Return once the process reports SERVING. There is no time limit, so the caller also watches the process."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while not await is_serving(health):  # noqa: ASYNC110 - another process, nothing to await
            await asyncio.sleep(POLL_S)


async def is_serving(health: Any) -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@dataclass(frozen=True)
class RestartPolicy:
    """Set the limits of restarts, in seconds. Serving for `stable_s` resets the count of failures. A process that never
    served fails permanently after it has ended `give_up_after` times."""

    delays: Backoff = Backoff(first_s=0.1, max_s=5.0)
    stable_s: float = 5.0
    give_up_after: int = 8


@dataclass(frozen=True)
class Ending:
    """Describe the end of a process: its exit code (negative: the signal), and the seconds that it served (0: none)."""

    exit_code: int
    served_s: float
    ever_served: bool


@dataclass(frozen=True)
class Restart:
    """Restart after `delay_s`; `failures` is the count to pass to the next decision."""

    delay_s: float
    failures: int


@dataclass(frozen=True)
class GiveUp:
    reason: str


def decide(policy: RestartPolicy, failures: int, ending: Ending) -> Restart | GiveUp:
    """Decide between a restart and giving up. A service that fails its first start (bad settings, a corrupt model)
    would fail the next one too. A service that has served always restarts, since accepted requests wait for it."""
    if not ending.ever_served and ending.exit_code > 0:
        return GiveUp(f"refused to start (exit code {ending.exit_code})")
    failures = 1 if ending.served_s >= policy.stable_s else failures + 1
    if not ending.ever_served and failures >= policy.give_up_after:
        return GiveUp(f"ended {failures} times in a row, last with {describe_exit(ending.exit_code)}")
    return Restart(policy.delays.delay_s(failures), failures)


def describe_exit(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


class ProcessState(Enum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Surroundings:
    """Hold what all processes of a suite share: the mark that identifies leftovers, the log view, the restart rules."""

    mark: str
    view: LogView
    policy: RestartPolicy = field(default_factory=RestartPolicy)


class SupervisedProcess:
    """Run one process. `changed` is called after every change of `state`; `run` ends with FAILED or STOPPED."""

    def __init__(self, spec: ProcessSpec, around: Surroundings, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.state = ProcessState.STARTING
        self.failure = ""
        self._around = around
        self._changed = changed
        # The task of `run`, which `start` sets.
        self.life: asyncio.Task[None]
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._ever_served = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Run the process in the task `life`. Changes state."""
        self.life = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Keep the process running until `stop`, or until the restart policy gives up."""
        failures = 0
        while not self._stopping.is_set():
            ending = await self._run_once()
            if self._stopping.is_set():
                break
            decision = decide(self._around.policy, failures, ending)
            if isinstance(decision, GiveUp):
                self.failure = decision.reason
                return self._become(ProcessState.FAILED)
            failures = decision.failures
            how = describe_exit(ending.exit_code)
            self._around.view.note(f"{self.spec.name} ended with {how}; starting it again in {decision.delay_s:.1f} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(decision.delay_s):
                    await self._stopping.wait()
        self._become(ProcessState.STOPPED)

    def stop(self) -> None:
        """Ask the process to drain and end; `run` returns when it has."""
        self._stopping.set()
        if self.state in (ProcessState.STARTING, ProcessState.SERVING):
            self._become(ProcessState.STOPPING)
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """End the process and its children now."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill_group()

    async def _run_once(self) -> Ending:
        """Run the process from one start to its end."""
        self._become(ProcessState.STARTING)
        view, name = self._around.view, self.spec.name
        try:
            child = await start_child(
                self.spec.module,
                self.spec.arguments,
                self._around.mark,
                lambda line: view.line(name, line),
                environment_of(self.spec, os.environ),
            )
        except OSError as error:  # no memory or no descriptors: a later start may have them
            view.note(f"{name} cannot be started: {error.strerror}", error=True)
            return Ending(os.EX_OSERR, 0.0, self._ever_served)
        self._child = child
        if self._stopping.is_set():
            child.terminate()
        serving = asyncio.create_task(self._watch_readiness(time.monotonic()))
        exit_code = await child.wait()
        self._child = None
        serving.cancel()
        await asyncio.wait({serving})
        served_s = 0.0 if serving.cancelled() else time.monotonic() - serving.result()
        return Ending(exit_code, served_s, self._ever_served)

    async def _watch_readiness(self, started_s: float) -> float:
        """Wait until the process serves, and return the monotonic time in seconds."""
        await wait_until_serving(self.spec.address)
        again = " again" if self._ever_served else ""
        where = f" on GPU {self.spec.device}" if self.spec.device else ""
        self._around.view.note(f"{self.spec.name} serves{again}{where} after {time.monotonic() - started_s:.1f} s")
        self._ever_served = True
        if not self._stopping.is_set():
            self._become(ProcessState.SERVING)
        return time.monotonic()

    def _become(self, state: ProcessState) -> None:
        if state is not self.state:
            self.state = state
            self._changed()


async def await_ends(stopping: Sequence[SupervisedProcess], timeout_s: float, view: LogView) -> None:
    """Wait until processes that were asked to stop have ended, and kill the ones that take longer."""
    lives = {process.life: process for process in stopping}
    _, pending = await asyncio.wait(lives, timeout=timeout_s)
    if pending:
        late = [lives[life] for life in pending]
        names = ", ".join(sorted(process.spec.name for process in late))
        view.note(f"{names} did not stop within {timeout_s:.0f} s", error=True)
        for process in late:
            process.kill()
        await asyncio.wait(pending)
