"""Supervise one process: start, watch, restart with growing pauses, and stop it."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from pentimento.supervisor.child import Child, start_child
from pentimento.supervisor.devices import environment_of
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process_spec import ProcessSpec
from pentimento.supervisor.readiness import wait_until_serving
from pentimento.supervisor.restarts import Ending, GiveUp, RestartPolicy, decide, describe_exit


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
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._ever_served = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

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
