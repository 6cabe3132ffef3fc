"""Hold the processes of a running suite, each with the task that runs it."""

import asyncio
from collections.abc import Iterator

from pentimento.supervisor.devices import placed
from pentimento.supervisor.process import SupervisedProcess
from pentimento.supervisor.process_spec import ProcessSpec


class RunningProcesses:
    """Hold processes and their tasks, while processes are added and removed. Use it on the event loop only."""

    def __init__(self) -> None:
        self.processes: list[SupervisedProcess] = []
        self._lives: dict[str, asyncio.Task[None]] = {}

    def placed(self, spec: ProcessSpec) -> ProcessSpec:
        """Return the process with a GPU chosen by the present load of each."""
        return placed(spec, (process.spec for process in self.processes))

    def take_in(self, process: SupervisedProcess) -> None:
        """Add a process that `start_all` will start."""
        self.processes.append(process)

    def start_all(self) -> None:
        """Start every process."""
        for process in self.processes:
            self._begin(process)

    def add(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        """Add and start a process, and return its task."""
        self.take_in(process)
        return self._begin(process)

    def forget(self, process: SupervisedProcess) -> None:
        """Remove a process that has ended."""
        self.processes.remove(process)
        del self._lives[process.spec.name]

    def life(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        """Return the task that ends with the process."""
        return self._lives[process.spec.name]

    def kill(self) -> None:
        """Kill all processes now."""
        for process in self.processes:
            process.kill()

    async def all_ended(self) -> None:
        """Return once every process has ended."""
        await asyncio.wait(self._lives.values())

    def stages(self) -> Iterator[list[SupervisedProcess]]:
        """Yield the processes of each drain stage, read once the stage before has drained."""
        for stage in sorted({process.spec.stage for process in self.processes}):
            if members := [process for process in self.processes if process.spec.stage == stage]:
                yield members

    def _begin(self, process: SupervisedProcess) -> "asyncio.Task[None]":
        self._lives[process.spec.name] = asyncio.create_task(process.run())
        return self._lives[process.spec.name]
