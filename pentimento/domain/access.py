"""What is kept of a cached item's uses, and what a rule of eviction makes of it.

An item is one latent at one K, or an image. A rule gives its record a rank, and the lowest rank goes first. Since no
rank moves by itself, a heap or an index of a database keeps the order at O(log n) an access, and the records are all
that has to be kept to know it again.
"""

from dataclasses import dataclass, replace
from typing import Protocol

Rank = tuple[float, int]
"""A score and, for equal scores, a tick; the lowest goes first."""


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """What is kept of an item's accesses: enough to know when it goes.

    Ticks count additions and uses of the whole cache, so they order accesses and need no clock. `saved_steps` is K, the
    steps that a use saves, above 0. `used_tick` is `added_tick` before the first use. `faded_uses` is the sum of the
    addition and the uses, each faded up to `used_tick`; a rule under which uses do not fade leaves it as it is.
    """

    saved_steps: float
    size_bytes: int
    added_tick: int
    used_tick: int
    use_count: int = 0
    faded_uses: float = 1.0


class EvictionRule(Protocol):
    """Ranks items by their records. Pure: nothing but the parameters is kept, and `repr` gives name and parameters."""

    def rank(self, record: AccessRecord) -> Rank:
        """Return the item's place: the lowest goes first."""
        ...

    def used(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record after a use at `tick`."""
        ...

    def beside(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record after a use, at `tick`, of another item of the same entry."""
        ...


class CountingRule:
    """Counts uses; what is used beside an item does not concern it."""

    def used(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record with one use more."""
        return replace(record, used_tick=tick, use_count=record.use_count + 1)

    def beside(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record as it is."""
        return record


@dataclass(frozen=True)
class FifoRule(CountingRule):
    """First in, first out: the oldest goes first, used or not."""

    def rank(self, record: AccessRecord) -> Rank:
        """Return the place in the order of additions."""
        return 0.0, record.added_tick
