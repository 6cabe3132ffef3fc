"""Run a suite of local processes: start all together, restart them, and drain them in order."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from pentimento.supervisor.devices import placed
from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import ProcessState, SupervisedProcess, Surroundings, await_ends
from pentimento.supervisor.scaling import ReplicaFiles, ReplicaScaler
from pentimento.supervisor.suite_settings import Suite

# A service drains for at most 30 s by default; a process that still runs then will not end by itself.
STOP_TIMEOUT_S = 35.0
AFTER_DRAIN_S = 5.0
# Seconds between reports of the processes that are still starting.
TELL_EVERY_S = 15.0


class Supervisor:
    """Run the processes of a suite. `run` returns the exit code: 0 after a requested stop, 1 after a failed start."""

    def __init__(
        self,
        suite: Suite,
        around: Surroundings,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        tell_every_s: float = TELL_EVERY_S,
    ) -> None:
        self._tell_every_s = tell_every_s
        self.view: LogView = around.view
        self._stop_timeout_s = stop_timeout_s
        self._change = asyncio.Event()
        self._stop_requests = 0
        # The present processes; the scaler adds and removes some.
        self.processes: list[SupervisedProcess] = []
        for spec in suite.processes:
            on_device = placed(spec, (process.spec for process in self.processes))
            self.processes.append(SupervisedProcess(on_device, around, self._changed))
        self._scaler = ReplicaScaler(suite.groups, self.processes, around, self._changed, stop_timeout_s)
        self._files: ReplicaFiles | None = None

    def request_scaling(self) -> None:
        """Scale the groups to the file of wanted counts; the other file reports progress. For signal handlers of the
        event loop."""
        if self._files is not None and not self._stop_requests:
            self._scaler.follow(self._files)

    def request_stop(self) -> None:
        """Drain in order at the first call, kill at the second. For signal handlers of the event loop."""
        if self._stop_requests:
            return self.request_kill()
        self.view.note("stopping: the frontdoor first (once more to stop at once)")
        self._stop_requests += 1
        self._change.set()

    def request_kill(self) -> None:
        """Kill all processes now, and end `run`. For signal handlers of the event loop."""
        self.view.note("stopping at once")
        self._stop_requests += 2
        self.kill()
        self._change.set()

    def kill(self) -> None:
        """Kill all processes now."""
        for process in self.processes:
            process.kill()

    async def run(
        self,
        on_serving: Callable[[float], None],
        files: ReplicaFiles | None = None,
        arrival: Callable[[], Awaitable[str]] | None = None,
    ) -> int:
        """Start all processes, and run them until a stop or a failed start; none is left running at the return.

        `on_serving` is called once, with the seconds of the start, when all serve and `arrival`, if any, has returned
        "" (else the reason why requests reach no worker).
        """
        started = time.monotonic()
        for process in self.processes:
            process.start()
        telling = asyncio.create_task(self._report_starts())
        try:
            if await self._until(self._all_serve) and (arrival is None or await self._arrived(arrival)):
                telling.cancel()
                self._files = files
                self._tell()
                on_serving(time.monotonic() - started)
                await self._until(lambda: False)
            failed = self._stop_requests == 0
            await self._drain()
            return 1 if failed else 0
        finally:
            telling.cancel()
            self.kill()
            await self._scaler.close()
            await asyncio.wait([process.life for process in self.processes])

    async def _arrived(self, arrival: Callable[[], Awaitable[str]]) -> bool:
        """Return whether `arrival` succeeded: False after a requested stop, or for a reason, which is logged."""
        arriving = asyncio.ensure_future(arrival())
        arriving.add_done_callback(lambda _: self._change.set())
        try:
            if not await self._until(arriving.done):
                return False
            if reason := arriving.result():
                self.view.note(reason, error=True)
            return not reason
        finally:
            arriving.cancel()

    async def _report_starts(self) -> None:
        """Report the processes that are still starting, at intervals: the user may see no logs."""
        while True:
            await asyncio.sleep(self._tell_every_s)
            for process in self.processes:
                if process.state is ProcessState.STARTING:
                    lines = self.view.tail(process.spec.name, 1)
                    self.view.note("; its last line: ".join([f"{process.spec.name} is still starting", *lines]))

    async def _until(self, reached: Callable[[], bool]) -> bool:
        """Wait for `reached`, and return True; False after a requested stop, or if a process failed before serving."""
        while not reached():
            self._change.clear()
            if self._report_failures() or self._stop_requests:
                return False
            await self._change.wait()
        return True

    def _report_failures(self) -> bool:
        """Log the reason for each failed process, and return whether there is any. Added ones do not count."""
        failed = [
            process
            for process in self.processes
            if process.state is ProcessState.FAILED and process.spec.name not in self._scaler.added
        ]
        for process in failed:
            self.view.note(f"{process.spec.name} {process.failure}; its last lines:", error=True)
            for line in self.view.tail(process.spec.name):
                self.view.note(f"  {line}", error=True)
        return bool(failed)

    def _all_serve(self) -> bool:
        return all(process.state is ProcessState.SERVING for process in self.processes)

    def _changed(self) -> None:
        self._change.set()
        self._tell()

    def _tell(self) -> None:
        """Write the status of each group for readers. A failed write is logged and has no other effect."""
        try:
            if self._files is not None:
                self._files.tell(self._scaler.statuses())
        except OSError as error:
            self.view.note(f"how many processes there are cannot be written: {error.strerror}", error=True)

    async def _drain(self) -> None:
        """Stop the processes stage by stage, so that a caller ends before the services that it calls."""
        for stage in sorted({process.spec.stage for process in self.processes}):
            # Read once the stage before has drained: the scaler removes processes that have ended.
            if members := [process for process in self.processes if process.spec.stage == stage]:
                for process in members:
                    process.stop()
                await await_ends(members, self._stop_timeout_s, self.view)
