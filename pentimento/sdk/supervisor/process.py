"""One supervised process: started, watched, restarted with growing pauses, stopped."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pentimento.sdk.supervisor.leftovers import MARK
from pentimento.sdk.supervisor.output import LogView
from pentimento.sdk.supervisor.readiness import wait_until_serving
from pentimento.sdk.supervisor.restarts import Ending, GiveUp, RestartPolicy, decide, describe_exit
from pentimento.sdk.supervisor.suite import ProcessSpec

LAUNCHER = Path(__file__).with_name("launch.py")
SOURCE_ROOT = Path(__file__).resolve().parents[3]
MAX_LINE_BYTES = 256 * 1024


class State(Enum):
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Surroundings:
    """What every process of a suite shares: the mark by which leftovers are found, and the log view."""

    mark: str
    view: LogView
    policy: RestartPolicy = field(default_factory=RestartPolicy)


class SupervisedProcess:
    """`changed` is called after every change of `state`; `run` ends with FAILED or STOPPED."""

    def __init__(self, spec: ProcessSpec, around: Surroundings, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.state = State.STARTING
        self.failure = ""
        self._around = around
        self._changed = changed
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._ever_served = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Keeps the process up until `stop`, or until the restart policy gives up."""
        failures = 0
        while not self._stopping.is_set():
            ending = await self._run_once()
            if self._stopping.is_set():
                break
            decision = decide(self._around.policy, failures, ending)
            if isinstance(decision, GiveUp):
                self.failure = decision.reason
                return self._become(State.FAILED)
            failures = decision.failures
            how = describe_exit(ending.exit_code)
            self._around.view.note(f"{self.spec.name} ended with {how}; starting it again in {decision.delay_s:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), decision.delay_s)
        self._become(State.STOPPED)

    def stop(self) -> None:
        """Asks the process to drain and end; `run` returns when it has."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and its children now."""
        self._stopping.set()
        self._sweep_group()

    async def _run_once(self) -> Ending:
        """From one start to its end."""
        self._become(State.STARTING)
        child = await self._spawn()
        logs = asyncio.create_task(self._copy_log(child))
        serving = asyncio.create_task(self._watch_readiness())
        exit_code = await child.wait()
        # Whatever the process started itself ends with it, or it would hold the locks that the next start needs.
        self._sweep_group()
        self._child = None
        serving.cancel()
        await asyncio.wait({logs, serving})
        served_s = 0.0 if serving.cancelled() else time.monotonic() - serving.result()
        return Ending(exit_code, served_s, self._ever_served)

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())),
            *(sys.executable, "-P", "-m", self.spec.module, *self.spec.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=child_environment(self._around.mark),
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        return self._child

    async def _watch_readiness(self) -> float:
        """The monotonic time at which it began to serve."""
        await wait_until_serving(self.spec.address)
        self._ever_served = True
        self._become(State.SERVING)
        return time.monotonic()

    async def _copy_log(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while True:
            try:
                line = await child.stdout.readline()
            except ValueError:
                self._around.view.line(self.spec.name, f"(a line of more than {MAX_LINE_BYTES} bytes was left out)")
                continue
            if not line:
                return
            self._around.view.line(self.spec.name, line.decode(errors="replace").rstrip("\n"))

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    def _sweep_group(self) -> None:
        """SIGKILL to the process's group, which has its pid for an id and outlives it as long as a member does."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _become(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._changed()


def child_environment(mark: str) -> dict[str, str]:
    """Ours, the mark, and unbuffered output."""
    return {**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1", "PYTHONPATH": source_path()}


def source_path() -> str:
    """A module path that finds the services beside this package, installed or not, whatever the folder holds."""
    return os.pathsep.join(filter(None, (str(SOURCE_ROOT), os.environ.get("PYTHONPATH", ""))))
