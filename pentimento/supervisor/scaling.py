"""Scale groups of processes while the suite runs: added ones start immediately, removed ones drain first."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pentimento.domain.errors import InvalidArgument
from pentimento.files.private_files import replace_file
from pentimento.rpc.transport import locked
from pentimento.supervisor.devices import placed
from pentimento.supervisor.process import ProcessState, SupervisedProcess, Surroundings, await_ends
from pentimento.supervisor.suite_settings import ReplicaGroup

MAX_REPLICAS = 64


@dataclass(frozen=True)
class GroupStatus:
    """Describe a group of equal processes: the `wanted` number; `states` by process name, `starting`, `serving` or
    `stopping`; `failures`: the reasons why added processes failed to start, by name."""

    wanted: int
    states: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Return whether the wanted number of processes serves, and no others are left."""
        return len(self.states) == self.wanted and set(self.states.values()) <= {"serving"}


class ReplicaFiles:
    """Read and write the files of one state directory, each replaced whole: the wanted numbers of processes, written by
    `pentimento scale`, and the running ones, written by the supervisor."""

    def __init__(self, state_directory: Path) -> None:
        self._wanted = state_directory / "wanted.json"
        self._there = state_directory / "replicas.json"

    def want(self, group: str, count: int) -> None:
        """Write the wanted count of a group. The counts of other groups stay, also if another process writes now."""
        with locked(self._wanted.parent):
            _replace(self._wanted, {**self.wanted(), group: count})

    def forgo(self, group: str, asked: int) -> None:
        """Reduce the wanted count of a group by one, if it is still `asked` and above 1."""
        with locked(self._wanted.parent):
            wanted = self.wanted()
            if wanted.get(group) == asked > 1:
                _replace(self._wanted, {**wanted, group: asked - 1})

    def wanted(self) -> dict[str, int]:
        """Return the wanted counts by group; empty before any request. Raises InvalidArgument for an invalid file."""
        try:
            found = json.loads(self._wanted.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InvalidArgument.of(self._wanted.name, f"must be JSON: {error}") from error
        counts: dict[str, int] = found if isinstance(found, dict) else {"": -1}
        for group, wanted in counts.items():
            if type(wanted) is not int or not 1 <= wanted <= MAX_REPLICAS:
                raise InvalidArgument.of(self._wanted.name, f"{group!r} must be between 1 and {MAX_REPLICAS}")
        return counts

    def tell(self, groups: Mapping[str, GroupStatus]) -> None:
        """Write the status of each group."""
        _replace(self._there, {name: asdict(status) for name, status in groups.items()})

    def there(self) -> dict[str, GroupStatus]:
        """Return the supervisor's last statuses by group; empty before the first."""
        try:
            return {name: GroupStatus(**status) for name, status in json.loads(self._there.read_text()).items()}
        except FileNotFoundError:
            return {}

    def forget(self) -> None:
        """Remove both files: the counts of an ended suite do not apply to the next one."""
        self._wanted.unlink(missing_ok=True)
        self._there.unlink(missing_ok=True)


def _replace(path: Path, document: Mapping[str, object]) -> None:
    replace_file(path, json.dumps(document, indent=1) + "\n")


class ReplicaScaler:
    """Scale the groups; use it on the event loop only. `changed` is called when a process changes its state, is added
    or removed. `added`: names of processes added later, which may fail to start without ending the suite."""

    def __init__(
        self,
        groups: Sequence[ReplicaGroup],
        running: list[SupervisedProcess],
        around: Surroundings,
        changed: Callable[[], None],
        stop_timeout_s: float,
    ) -> None:
        self.added: set[str] = set()
        self._groups = {group.name: group for group in groups}
        by_name = {process.spec.name: process for process in running}
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
        members = self._members[name]
        staying = sorted(number for number in members if members[number].state is not ProcessState.STOPPING)
        for number in staying[wanted:]:
            members[number].stop()
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

    def _add(self, name: str) -> None:
        members = self._members[name]
        # A process that still drains keeps its address.
        number = next(number for number in count() if number not in members)
        spec = placed(self._groups[name].spec(number), (process.spec for process in self._running))
        process = members[number] = SupervisedProcess(spec, self._around, self._changed)
        self.added.add(spec.name)
        self._running.append(process)
        process.start()
        self._spawn(self._watch_start(name, number))

    async def _watch_start(self, name: str, number: int) -> None:
        """Remove an added process that fails, and reduce the wanted count; the suite stays."""
        process = self._members[name][number]
        await asyncio.wait({process.life})
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
        await await_ends([self._members[name][number]], self._stop_timeout_s, self._around.view)
        self._take_out(name, number)

    def _take_out(self, name: str, number: int) -> None:
        self._running.remove(self._members[name].pop(number))
        self._changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
