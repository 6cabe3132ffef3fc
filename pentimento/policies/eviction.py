"""What leaves a full cache: pure book-keeping, one interface, O(log n) a call.

FIFO is MoDM's sliding window (5.4). LCBFU is NIRVANA's (5.4): the item with the lowest f * K goes first, f the number
of uses and K the steps it saves. The paper leaves open the first f, ties and whose f rises when a hole lets another K
serve. Here: f starts at `first_frequency` (1), the older of equals goes, and the item that served is the one used.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

Item = Hashable


class Eviction(Protocol):
    """Which of the items it was told of goes next. All methods but `__len__` change state."""

    def add(self, item: Item, saved_steps: float) -> None:
        """A new item, or a fresh one under the name of an old one. `saved_steps` is K, what a use of it saves."""
        ...

    def use(self, item: Item) -> None:
        """It served a request; an item that is gone is ignored."""
        ...

    def remove(self, item: Item) -> None:
        """It is gone for another reason."""
        ...

    def pop(self) -> Item:
        """Takes out the item that goes next; KeyError when there is none."""
        ...

    def __len__(self) -> int: ...


class Fifo:
    """The oldest goes first, used or not."""

    def __init__(self) -> None:
        self._items: OrderedDict[Item, None] = OrderedDict()

    def add(self, item: Item, saved_steps: float) -> None:
        self._items.pop(item, None)
        self._items[item] = None

    def use(self, item: Item) -> None:
        pass

    def remove(self, item: Item) -> None:
        self._items.pop(item, None)

    def pop(self) -> Item:
        return self._items.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._items)


class Lcbfu:
    """Least computationally beneficial and frequently used: the lowest f * K goes first, the older of equals."""

    def __init__(self, first_frequency: float = 1.0) -> None:
        self._first = first_frequency
        self._count = 0
        # Item to (score, number, K); an entry of the heap that is not here any more is skipped.
        self._known: dict[Item, tuple[float, int, float]] = {}
        self._heap: list[tuple[float, int, Item]] = []

    def add(self, item: Item, saved_steps: float) -> None:
        self._count += 1
        self._score(item, self._first * saved_steps, self._count, saved_steps)

    def use(self, item: Item) -> None:
        if item in self._known:
            score, number, saved_steps = self._known[item]
            self._score(item, score + saved_steps, number, saved_steps)

    def remove(self, item: Item) -> None:
        self._known.pop(item, None)
        self._compact()

    def pop(self) -> Item:
        while self._heap:
            score, number, item = heapq.heappop(self._heap)
            if self._known.get(item, (None, None))[:2] == (score, number):
                del self._known[item]
                return item
        raise KeyError("nothing to evict")

    def __len__(self) -> int:
        return len(self._known)

    def _score(self, item: Item, score: float, number: int, saved_steps: float) -> None:
        self._known[item] = (score, number, saved_steps)
        heapq.heappush(self._heap, (score, number, item))
        self._compact()

    def _compact(self) -> None:
        """Entries that later ones made void are at most as many as the live ones, and a few."""
        if len(self._heap) > 2 * len(self._known) + 64:
            self._heap = [(score, number, item) for item, (score, number, _) in self._known.items()]
            heapq.heapify(self._heap)


EVICTIONS: Mapping[str, Callable[[], Eviction]] = {"fifo": Fifo, "lcbfu": Lcbfu}
