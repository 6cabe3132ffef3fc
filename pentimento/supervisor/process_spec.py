"""Describe what a supervisor starts: processes, and groups of equal processes."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessSpec:
    """Describe a process. `address` answers health checks. Stages drain in ascending order: a caller stops before the
    services that it calls. `devices`: the GPUs that the process may use; `device`: its GPU, once it is placed."""

    name: str
    module: str
    arguments: tuple[str, ...]
    address: str
    stage: int
    devices: tuple[str, ...] = ()
    device: str = ""


@dataclass(frozen=True)
class ReplicaGroup:
    """Describe equal processes in a variable number: `spec` makes the process of a number from 0 on, and `count` is
    the first number of processes."""

    name: str
    spec: Callable[[int], ProcessSpec]
    count: int

    @property
    def specs(self) -> tuple[ProcessSpec, ...]:
        """Return the first processes of the group."""
        return tuple(self.spec(number) for number in range(self.count))


@dataclass(frozen=True)
class Suite:
    """List all processes. `groups` hold the processes of `processes` that may be scaled while the suite runs."""

    processes: tuple[ProcessSpec, ...]
    groups: tuple[ReplicaGroup, ...] = ()
