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
    """The rule by which an item of a full cache is chosen to go. All methods but `__len__` change state."""

    def add(self, item: Item, saved_steps: float) -> None:
        """Add an item, or a fresh one under the name of an old one. `saved_steps` is K, the steps that a use of it
        saves."""
        ...

    def use(self, item: Item) -> None:
        """Note that an item served a request; one that is gone is ignored."""
        ...

    def remove(self, item: Item) -> None:
        """Forget an item that went for another reason."""
        ...

    def pop(self) -> Item:
        """Take out the item that goes next and return it; KeyError when there is none."""
        ...

    def __len__(self) -> int: ...


class Fifo:
    """First in, first out: the oldest goes first, used or not."""

    def __init__(self) -> None:
        self._items: OrderedDict[Item, None] = OrderedDict()

    def add(self, item: Item, saved_steps: float) -> None:
        """Add an item as the newest; one that is there is renewed."""
        self._items.pop(item, None)
        self._items[item] = None

    def use(self, item: Item) -> None:
        """Ignore it: uses do not count here."""

    def remove(self, item: Item) -> None:
        """Forget an item; one that is gone is ignored."""
        self._items.pop(item, None)

    def pop(self) -> Item:
        """Take out the oldest item; KeyError when there is none."""
        return self._items.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._items)


class Lcbfu:
    """Least computationally beneficial and frequently used (NIRVANA, section 5.4): the lowest f * K goes first, the
    older of equals."""

    def __init__(self, first_frequency: float = 1.0) -> None:
        self._first = first_frequency
        self._count = 0
        # Item to (score, number, K); an entry of the heap that is not here any more is skipped.
        self._known: dict[Item, tuple[float, int, float]] = {}
        self._heap: list[tuple[float, int, Item]] = []

    def add(self, item: Item, saved_steps: float) -> None:
        """Add an item as the newest, with the score f * K of the first frequency."""
        self._count += 1
        self._score(item, self._first * saved_steps, self._count, saved_steps)

    def use(self, item: Item) -> None:
        """Raise the score of an item by K; one that is gone is ignored."""
        if item in self._known:
            score, number, saved_steps = self._known[item]
            self._score(item, score + saved_steps, number, saved_steps)

    def remove(self, item: Item) -> None:
        """Forget an item; one that is gone is ignored."""
        self._known.pop(item, None)
        self._compact()

    def pop(self) -> Item:
        """Take out the item of the lowest score; KeyError when there is none."""
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
