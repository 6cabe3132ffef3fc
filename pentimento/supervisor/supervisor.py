"""Runs a suite of local processes: all started at once, kept up, drained in order."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from pentimento.supervisor.output import LogView
from pentimento.supervisor.process import ProcessState, SupervisedProcess, Surroundings
from pentimento.supervisor.process_spec import Suite
from pentimento.supervisor.replicas import ReplicaFiles
from pentimento.supervisor.running import RunningProcesses
from pentimento.supervisor.scaling import ReplicaScaler

# A service drains for 30 s at most unless its settings say otherwise; what still runs then is not going to end by
# itself.
STOP_TIMEOUT_S = 35.0
AFTER_DRAIN_S = 5.0
# How often a suite that does not serve yet says whom it waits for.
TELL_EVERY_S = 15.0


class Supervisor:
    """`run` returns the exit code: 0 after a stop that was asked for, 1 when the suite could not start."""

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
        self._running = RunningProcesses()
        for spec in suite.processes:
            self._running.take_in(SupervisedProcess(self._running.placed(spec), around, self._changed))
        self._scaler = ReplicaScaler(suite.groups, self._running, around, self._changed, stop_timeout_s)
        self._files: ReplicaFiles | None = None

    @property
    def processes(self) -> list[SupervisedProcess]:
        """Return those there are now."""
        return self._running.processes

    def request_scaling(self) -> None:
        """Have as many processes as the file of wanted counts says; the other one tells how far that is. For signal
        handlers of the event loop."""
        if self._files is not None and not self._stop_requests:
            self._scaler.follow(self._files)

    def request_stop(self) -> None:
        """The first time drains in order, the second time kills. For signal handlers of the event loop."""
        if self._stop_requests:
            return self.request_kill()
        self.view.note("stopping: the frontdoor first (once more to stop at once)")
        self._stop_requests += 1
        self._change.set()

    def request_kill(self) -> None:
        """Ends everything now."""
        self.view.note("stopping at once")
        self._stop_requests += 2
        self.kill()
        self._change.set()

    def kill(self) -> None:
        """End everything now."""
        self._running.kill()

    async def run(
        self,
        on_serving: Callable[[float], None],
        files: ReplicaFiles | None = None,
        arrival: Callable[[], Awaitable[str]] | None = None,
    ) -> int:
        """Starts everything; `on_serving` is called once, with the seconds that it took, when all serve and `arrival`,
        if any, has returned "" and no reason why requests reach nobody. Nothing is left running when it returns."""
        started = time.monotonic()
        self._running.start_all()
        telling = asyncio.create_task(self._tell_who_starts())
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
            await self._running.all_ended()

    async def _arrived(self, arrival: Callable[[], Awaitable[str]]) -> bool:
        """False where a stop was asked for meanwhile, or it returned a reason, which is told."""
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

    async def _tell_who_starts(self) -> None:
        """Now and then, while somebody waits for all to serve, and perhaps sees no logs."""
        while True:
            await asyncio.sleep(self._tell_every_s)
            for process in self.processes:
                if process.state is ProcessState.STARTING:
                    said = "".join(self.view.tail(process.spec.name, 1))
                    self.view.note(f"{process.spec.name} is still starting; its last line: {said}")

    async def _until(self, reached: Callable[[], bool]) -> bool:
        """True once `reached`; False when a stop was asked for, or a process failed, as it may until it has served."""
        while not reached():
            self._change.clear()
            if self._report_failures() or self._stop_requests:
                return False
            await self._change.wait()
        return True

    def _report_failures(self) -> bool:
        """Says of each failed process why it ended; whether there is any."""
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
        """Who looks on is told how many of each there are; that it cannot be written costs only that."""
        try:
            if self._files is not None:
                self._files.tell(self._scaler.statuses())
        except OSError as error:
            self.view.note(f"how many processes there are cannot be written: {error.strerror}", error=True)

    async def _drain(self) -> None:
        """Stage by stage: nobody stops while one that calls it still works."""
        for members in self._running.stages():
            for process in members:
                process.stop()
            # One that was leaving already is forgotten as soon as it has ended.
            lives = {self._running.life(process): process for process in members}
            _, pending = await asyncio.wait(lives, timeout=self._stop_timeout_s)
            if pending:
                late = [lives[life] for life in pending]
                names = ", ".join(sorted(process.spec.name for process in late))
                self.view.note(f"{names} did not stop within {self._stop_timeout_s:.0f} s", error=True)
                for process in late:
                    process.kill()
