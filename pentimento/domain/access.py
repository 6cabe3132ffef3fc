"""Access records of cached items, and the rules that rank them for eviction.

An item is one latent at one K, or an image. A rule gives its record a rank, and the lowest rank goes first. No rank
moves by itself, so a heap or a database index keeps the order at O(log n) per access.
"""

from dataclasses import dataclass, replace
from typing import Protocol

Rank = tuple[float, int]
"""A score and, for equal scores, a tick; the lowest goes first."""


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """Accesses of an item, enough to rank it.

    Ticks count additions and uses of the whole cache, so they order accesses and need no clock. `saved_steps` is K, the
    steps that a use saves, above 0. `used_tick` is `added_tick` before the first use. `faded_uses` is the sum of the
    addition and the uses, each faded up to `used_tick`; a rule without fading leaves it unchanged.
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

    def used(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record after a use at `tick`."""

    def beside(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record after a use, at `tick`, of another item of the same entry."""


class CountingRule:
    """Counts uses of an item. Uses of other items of its entry do not matter."""

    def used(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record with one use more."""
        return replace(record, used_tick=tick, use_count=record.use_count + 1)

    def beside(self, record: AccessRecord, tick: int) -> AccessRecord:
        """Return the record unchanged."""
        return record


@dataclass(frozen=True)
class FifoRule(CountingRule):
    """First in, first out: the oldest goes first, used or not."""

    def rank(self, record: AccessRecord) -> Rank:
        """Return the place in the order of additions."""
        return 0.0, record.added_tick
