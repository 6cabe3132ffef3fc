"""Components of a tier, and what leaves a full one: models, LoRAs and ControlNets, of all sizes and load times.

    rule.note_use(component, now_s)
    for name in victims(rule, resident, needed_bytes, now_s) or ():
        ...

The caller loads, frees, and gives the time, by any clock that never goes back. Rules are in `policies.components`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from pentimento.domain.generation import ObjectReference

GB = 1_000_000_000
# The local disk that processes take for components, for models of 50 GB.
DEFAULT_DISK_MIB = 61440


class Tier(Enum):
    """Name a place of components, the fastest first. `STORE` is the remote object store, which has all components."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class HeldComponent:
    """State the fastest tier that has a worker's component, by digest; `Tier.STORE`: it has it no longer."""

    digest: str
    tier: Tier
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FoundComponent:
    """State the addresses of replicas that hold a component, and its place in the object store; None if the registry
    does not know it."""

    digest: str
    addresses: tuple[str, ...] = ()
    object: ObjectReference | None = None


def changed_components(now: Collection[HeldComponent], before: Collection[HeldComponent]) -> tuple[HeldComponent, ...]:
    """Return the components that differ from those before; one that is no longer held is in `Tier.STORE`."""
    old, new = {one.digest: one for one in before}, {one.digest: one for one in now}
    gone = (replace(one, tier=Tier.STORE) for digest, one in old.items() if digest not in new)
    return (*(one for one in new.values() if old.get(one.digest) != one), *gone)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """State the bytes of a replica's component, by registry name, that a load would read from a tier."""

    component: str
    tier: Tier
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TierSpeed:
    """State the seconds that a worker needs to load a gigabyte from a tier, as it measured."""

    tier: Tier
    seconds_per_gb: float


@dataclass(frozen=True, slots=True)
class Loadable:
    """Describe a component: its `memory_bytes` in the tier, and the `load_s` seconds that loading it again takes."""

    name: str
    memory_bytes: int
    load_s: float

    @property
    def density(self) -> float:
        """Return the load seconds that a byte of it saves."""
        return self.load_s / max(self.memory_bytes, 1)


class ComponentRule(Protocol):
    """Rank components by the worth of keeping them. Not thread-safe."""

    def note_use(self, component: Loadable, now_s: float) -> None:
        """Count a use, whether the component is resident or is about to be loaded."""

    def note_eviction(self, component: Loadable, now_s: float) -> None:
        """Learn that the component was evicted to make room."""

    def worth(self, component: Loadable, now_s: float) -> float:
        """Return the worth of keeping the component; the lowest leaves first. 0 or more."""


def victims(
    rule: ComponentRule,
    resident: Iterable[Loadable],
    needed_bytes: int,
    now_s: float,
    kept: Collection[str] = (),
) -> tuple[str, ...] | None:
    """Return the components to evict so that `needed_bytes` become free: least worth first, none of `kept`, and none
    that can stay since another one is large. None if `kept` leaves too few bytes. Report each to `note_eviction`."""
    if needed_bytes <= 0:
        return ()
    missing = needed_bytes
    leaving: list[Loadable] = []
    for one in sorted(resident, key=lambda one: (rule.worth(one, now_s), one.name)):
        if missing <= 0:
            break
        if one.name not in kept:
            leaving.append(one)
            missing -= one.memory_bytes
    return None if missing > 0 else _without_spares(leaving, -missing)


def _without_spares(leaving: list[Loadable], spare_bytes: int) -> tuple[str, ...]:
    """Return the names without components that fit into the spare bytes; the most worth stays first."""
    names = []
    for one in reversed(leaving):
        if one.memory_bytes <= spare_bytes:
            spare_bytes -= one.memory_bytes
        else:
            names.append(one.name)
    return tuple(reversed(names))
