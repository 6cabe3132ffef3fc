"""The processes of a suite that runs, and their lives as tasks."""

import asyncio
from collections.abc import Iterable, Iterator

from pentimento.supervisor.process import SupervisedProcess


class RunningProcesses:
    """On the event loop only, from the first start on. Processes come and go."""

    def __init__(self, processes: Iterable[SupervisedProcess]) -> None:
        self.processes = list(processes)
        self._lives: dict[str, asyncio.Task[None]] = {}

    def start_all(self) -> None:
        """Begin the life of each."""
        for process in self.processes:
            self._begin(process)

    def add(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        """Begin the life of one more, and return it."""
        self.processes.append(process)
        return self._begin(process)

    def forget(self, process: SupervisedProcess) -> None:
        """Take one out whose life has ended."""
        self.processes.remove(process)
        del self._lives[process.spec.name]

    def life(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        """Return what ends with the process."""
        return self._lives[process.spec.name]

    def kill(self) -> None:
        """End all now."""
        for process in self.processes:
            process.kill()

    async def all_ended(self) -> None:
        """Return once every life has ended."""
        await asyncio.wait(self._lives.values())

    def stages(self) -> Iterator[list[SupervisedProcess]]:
        """Yield those of each stage in which they drain, as they are once the stage before has drained."""
        for stage in sorted({process.spec.stage for process in self.processes}):
            if members := [process for process in self.processes if process.spec.stage == stage]:
                yield members

    def _begin(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        self._lives[process.spec.name] = asyncio.create_task(process.run())
        return self._lives[process.spec.name]
