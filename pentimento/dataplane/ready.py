"""The workers of a lane that have a free credit, in the order in which they are offered work."""

import heapq
from collections.abc import Iterator, Mapping

# The heap is swept when so many entries more than workers are in it.
_SLACK = 64


class ReadyWorkers:
    """Workers that could take a request, lowest cost first, longest there first among equals; every change costs O(log
    n) in the number of workers."""

    def __init__(self) -> None:
        self._costs: dict[str, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._costs)

    def __iter__(self) -> Iterator[str]:
        """All of them in their order, in O(n log n)."""
        return iter(sorted(self._costs, key=self._costs.__getitem__))

    def costs(self) -> Mapping[str, tuple[float, int]]:
        """Return the cost of the next request on each worker, and a number that is lower the longer it was there."""
        return self._costs

    def first(self) -> str:
        """Return the worker of the lowest cost; IndexError when there is none."""
        heap = self._heap
        while self._costs.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        return heap[0][2]

    def cheapest(self, most: int) -> tuple[str, ...]:
        """Return at most `most` workers of the lowest cost, those longest there first; IndexError when there is none.
        O(most log n)."""
        found = [self.first()]
        taken = [heapq.heappop(self._heap)]
        while self._heap and len(found) < most and self._heap[0][0] == taken[0][0]:
            entry = heapq.heappop(self._heap)
            if self._costs.get(entry[2]) == entry[:2]:
                found.append(entry[2])
                taken.append(entry)
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return tuple(found)

    def set(self, worker_id: str, cost: float) -> None:
        """Add the worker, or change the cost of the next request there."""
        before = self._costs.get(worker_id)
        if before is not None and before[0] == cost:
            return
        self._sequence += 1
        self._costs[worker_id] = (cost, self._sequence)
        heapq.heappush(self._heap, (cost, self._sequence, worker_id))
        if len(self._heap) > 2 * len(self._costs) + _SLACK:
            self._heap = [(*place, name) for name, place in self._costs.items()]
            heapq.heapify(self._heap)

    def discard(self, worker_id: str) -> None:
        """Remove the worker, if it is there."""
        self._costs.pop(worker_id, None)
