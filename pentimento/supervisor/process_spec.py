"""What a supervisor starts: processes, and groups of processes that are alike."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessSpec:
    """`address` answers health checks. Stages drain in ascending order: who calls stops before those it calls. A
    process with `devices` runs on one of these GPUs: on `device`, once it is placed."""

    name: str
    module: str
    arguments: tuple[str, ...]
    address: str
    stage: int
    devices: tuple[str, ...] = ()
    device: str = ""


@dataclass(frozen=True)
class ReplicaGroup:
    """Processes that are alike, of which there may be more or fewer: `spec` makes the one of a number from 0 on, and
    there are `count` of them at first."""

    name: str
    spec: Callable[[int], ProcessSpec]
    count: int

    @property
    def specs(self) -> tuple[ProcessSpec, ...]:
        """Return those that there are at first."""
        return tuple(self.spec(number) for number in range(self.count))


@dataclass(frozen=True)
class Suite:
    """`groups` have processes of `processes`: those whose number may change while the suite runs."""

    processes: tuple[ProcessSpec, ...]
    groups: tuple[ReplicaGroup, ...] = ()
