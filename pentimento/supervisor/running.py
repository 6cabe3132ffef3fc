"""The processes of a suite that runs, and their lives as tasks."""

import asyncio
from collections.abc import Iterator

from pentimento.supervisor.devices import placed
from pentimento.supervisor.process import SupervisedProcess
from pentimento.supervisor.process_spec import ProcessSpec


class RunningProcesses:
    """On the event loop only, from the first start on. Processes come and go."""

    def __init__(self) -> None:
        self.processes: list[SupervisedProcess] = []
        self._lives: dict[str, asyncio.Task[None]] = {}

    def placed(self, spec: ProcessSpec) -> ProcessSpec:
        """Return the process on the GPU that it is to run on, by what runs where now."""
        return placed(spec, (process.spec for process in self.processes))

    def take_in(self, process: SupervisedProcess) -> None:
        """Have it among those that `start_all` begins."""
        self.processes.append(process)

    def start_all(self) -> None:
        """Begin the life of each."""
        for process in self.processes:
            self._begin(process)

    def add(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        """Begin the life of one more, and return it."""
        self.take_in(process)
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
