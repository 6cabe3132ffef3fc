"""Order the workers of a lane that have a free credit, cheapest first."""

import heapq
from collections.abc import Iterator, Mapping

# The heap is swept when its stale entries exceed the workers by this number.
_SLACK = 64


class ReadyWorkers:
    """Order workers that could take a request: lowest cost first, longest ready first among equals. Every change costs
    O(log n) in the number of workers."""

    def __init__(self) -> None:
        self._costs: dict[str, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._costs)

    def __iter__(self) -> Iterator[str]:
        """Iterate over all workers in order, in O(n log n)."""
        return iter(sorted(self._costs, key=self._costs.__getitem__))

    def costs(self) -> Mapping[str, tuple[float, int]]:
        """Return the cost of the next request on each worker, with a number that is lower for a longer ready worker."""
        return self._costs

    def first(self) -> str:
        """Return the worker of the lowest cost. Raises IndexError if there is none."""
        heap = self._heap
        while self._costs.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        return heap[0][2]

    def cheapest(self, most: int) -> tuple[str, ...]:
        """Return at most `most` workers of the lowest cost, longest ready first, in O(most log n). Raises IndexError if
        there is none."""
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
        """Add the worker, or change its cost of the next request."""
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
        """Remove the worker, if present."""
        self._costs.pop(worker_id, None)
