"""Evict items from a full cache in memory: one interface for all rules, O(log n) per call.

`policies.eviction_rules` ranks items; this module keeps the order and the access records. A ledger keeps the same
records and ranks in columns of its rows.
"""

import heapq
from collections.abc import Hashable, Iterable
from typing import Protocol

from pentimento.domain.access import AccessRecord, EvictionRule, Rank
from pentimento.policies.eviction_rules import eviction_rule

Item = Hashable

_SPARE_ENTRIES = 64


class Eviction(Protocol):
    """A rule that chooses the next item to evict. All methods but `record` and `len` change state."""

    def add(self, item: Item, saved_steps: float, size_bytes: int = 1) -> None:
        """Add an item, or a fresh one under the name of an old one. `saved_steps` is K, the steps that a use of it
        saves."""

    def use(self, item: Item, beside: Iterable[Item] = ()) -> None:
        """Note that an item served a request; `beside` are the other items of its entry. Evicted items are ignored."""

    def remove(self, item: Item) -> None:
        """Forget an item that went for another reason."""

    def pop(self) -> Item:
        """Take out the item that goes next and return it; KeyError when there is none."""

    def record(self, item: Item) -> AccessRecord:
        """Return an item's access record. Raises KeyError if it was evicted."""

    def restore(self, item: Item, record: AccessRecord) -> None:
        """Put an item back with the record it had."""

    def __len__(self) -> int: ...


class EvictionQueue:
    """Items in a rule's eviction order: a heap that skips void entries."""

    def __init__(self, rule: EvictionRule) -> None:
        self._rule = rule
        self._tick = 0
        # A heap entry is void unless its rank equals the one here.
        self._known: dict[Item, tuple[Rank, AccessRecord]] = {}
        self._heap: list[tuple[Rank, int, Item]] = []
        self._pushed = 0

    def add(self, item: Item, saved_steps: float, size_bytes: int = 1) -> None:
        """Add an item as the newest."""
        self._tick += 1
        self._put(item, AccessRecord(saved_steps, size_bytes, self._tick, self._tick))

    def use(self, item: Item, beside: Iterable[Item] = ()) -> None:
        """Note a use of an item, and a use of their entry for its other items."""
        if item not in self._known:
            return
        self._tick += 1
        self._put(item, self._rule.used(self.record(item), self._tick))
        for other in beside:
            if other != item and other in self._known:
                self._put(other, self._rule.beside(self.record(other), self._tick))

    def remove(self, item: Item) -> None:
        """Forget an item; one that is gone is ignored."""
        self._known.pop(item, None)
        self._compact()

    def pop(self) -> Item:
        """Take out the item of the lowest rank; KeyError when there is none."""
        while self._heap:
            rank, _, item = heapq.heappop(self._heap)
            if self._is_current(item, rank):
                del self._known[item]
                return item
        raise KeyError("nothing to evict")

    def record(self, item: Item) -> AccessRecord:
        """Return an item's access record. Raises KeyError if it was evicted."""
        return self._known[item][1]

    def restore(self, item: Item, record: AccessRecord) -> None:
        """Put an item back with the record it had; ticks continue from the last one."""
        self._tick = max(self._tick, record.added_tick, record.used_tick)
        self._put(item, record)

    def items(self) -> list[Item]:
        """Return all items, in no order."""
        return list(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def _is_current(self, item: Item, rank: Rank) -> bool:
        return item in self._known and self._known[item][0] == rank

    def _put(self, item: Item, record: AccessRecord) -> None:
        rank = self._rule.rank(record)
        if not self._is_current(item, rank):
            # Numbered, so that items themselves are never compared.
            self._pushed += 1
            heapq.heappush(self._heap, (rank, self._pushed, item))
        self._known[item] = (rank, record)
        self._compact()

    def _compact(self) -> None:
        """Keep at most as many void entries as live ones, and a few more."""
        if len(self._heap) > 2 * len(self._known) + _SPARE_ENTRIES:
            self._heap = [(rank, number, item) for number, (item, (rank, _)) in enumerate(self._known.items())]
            self._pushed = len(self._heap)
            heapq.heapify(self._heap)


def open_eviction(name: str, capacity_count: int, *, hits_add: bool = False) -> EvictionQueue:
    """Return an empty order under the rule of that name, as in `eviction_rule`.

    Raises ValueError for an unknown name.
    """
    return EvictionQueue(eviction_rule(name, capacity_count, hits_add=hits_add))


def make_room(eviction: Eviction, new_count: int, capacity_count: int) -> list[Item]:
    """Evict the items that exceed a cache of `capacity_count` after adding `new_count`, and return them.

    In the paper's order a new item is never evicted (NIRVANA, section 5.4, Eviction).
    """
    surplus = len(eviction) + new_count - capacity_count
    return [eviction.pop() for _ in range(min(max(surplus, 0), len(eviction)))]
