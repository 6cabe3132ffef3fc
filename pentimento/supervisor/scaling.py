"""Scale groups of processes while the suite runs: added ones start immediately, removed ones drain first."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any

from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.process import ProcessState, SupervisedProcess, Surroundings
from pentimento.supervisor.process_spec import ReplicaGroup
from pentimento.supervisor.replicas import GroupStatus, ReplicaFiles
from pentimento.supervisor.running import RunningProcesses


class ReplicaScaler:
    """Scale the groups; use it on the event loop only. `changed` is called when a process changes its state, is added
    or removed. `added`: names of processes added later, which may fail to start without ending the suite."""

    def __init__(
        self,
        groups: Sequence[ReplicaGroup],
        running: RunningProcesses,
        around: Surroundings,
        changed: Callable[[], None],
        stop_timeout_s: float,
    ) -> None:
        self.added: set[str] = set()
        self._groups = {group.name: group for group in groups}
        by_name = {process.spec.name: process for process in running.processes}
        self._members = {
            group.name: {number: by_name[spec.name] for number, spec in enumerate(group.specs)} for group in groups
        }
        self._wanted = {group.name: group.count for group in groups}
        self._failures: dict[str, dict[str, str]] = {group.name: {} for group in groups}
        self._running = running
        self._around = around
        self._changed = changed
        self._stop_timeout_s = stop_timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        # Source of the wanted counts that were applied last.
        self._files: ReplicaFiles | None = None

    def statuses(self) -> dict[str, GroupStatus]:
        """Return the status of each group."""
        return {
            name: GroupStatus(
                self._wanted[name],
                {process.spec.name: process.state.value for process in members.values()},
                dict(self._failures[name]),
            )
            for name, members in self._members.items()
        }

    def scale(self, name: str, wanted: int) -> None:
        """Start the missing processes of a group, or stop the surplus ones, those with the highest numbers. Raises
        InvalidArgument for an unknown group."""
        if name not in self._groups:
            raise InvalidArgument.of("wanted", f"{name!r} must be one of {', '.join(self._groups)}")
        if wanted == self._wanted[name]:
            return
        self._around.view.note(f"{name}: {wanted} processes are wanted instead of {self._wanted[name]}")
        self._wanted[name] = wanted
        self._failures[name] = {}
        staying = self._staying(name)
        for number in staying[wanted:]:
            self._members[name][number].stop()
            self._spawn(self._see_off(name, number))
        for _ in range(wanted - len(staying)):
            self._add(name)
        self._changed()

    def follow(self, files: ReplicaFiles) -> None:
        """Scale the groups by the file of wanted counts; an error in it is logged and ignored."""
        self._files = files
        try:
            for name, wanted in files.wanted().items():
                self.scale(name, wanted)
        except (InvalidArgument, OSError) as error:
            self._around.view.note(f"not scaled: {error}", error=True)

    async def close(self) -> None:
        """Cancel all waiting for processes."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _staying(self, name: str) -> list[int]:
        members = self._members[name]
        return sorted(number for number in members if members[number].state is not ProcessState.STOPPING)

    def _add(self, name: str) -> None:
        members = self._members[name]
        # A process that still drains keeps its address.
        number = next(number for number in count() if number not in members)
        spec = self._running.placed(self._groups[name].spec(number))
        process = members[number] = SupervisedProcess(spec, self._around, self._changed)
        self.added.add(spec.name)
        self._spawn(self._watch_start(name, number, self._running.add(process)))

    async def _watch_start(self, name: str, number: int, life: "asyncio.Task[None]") -> None:
        """Remove an added process that fails, and reduce the wanted count; the suite stays."""
        process = self._members[name][number]
        await asyncio.wait({life})
        if process.state is ProcessState.FAILED:
            said = "".join(self._around.view.tail(process.spec.name, 1))
            when = time.strftime("%H:%M:%S")
            self._failures[name][process.spec.name] = f"{process.failure} at {when}; its last line: {said}"
            self._around.view.note(f"{process.spec.name} {process.failure}: {said}", error=True)
            self._forgo_one(name)
            self._take_out(name, number)

    def _forgo_one(self, name: str) -> None:
        """Reduce the wanted count by one, in the file too: it is read again when another group is scaled."""
        asked = self._wanted[name]
        self._wanted[name] -= 1
        try:
            if self._files is not None:
                self._files.forgo(name, asked)
        except (InvalidArgument, OSError) as error:
            self._around.view.note(f"{name}: what is wanted cannot be written: {error}", error=True)

    async def _see_off(self, name: str, number: int) -> None:
        process = self._members[name][number]
        life = self._running.life(process)
        _, pending = await asyncio.wait({life}, timeout=self._stop_timeout_s)
        if pending:
            self._around.view.note(f"{process.spec.name} did not stop within {self._stop_timeout_s:.0f} s", error=True)
            process.kill()
            await asyncio.wait({life})
        self._take_out(name, number)

    def _take_out(self, name: str, number: int) -> None:
        self._running.forget(self._members[name].pop(number))
        self._changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
