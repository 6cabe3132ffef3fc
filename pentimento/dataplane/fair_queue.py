"""Order requests by deficit round robin over tenants (Shreedhar and Varghese, 1995), earliest due first for each."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

# Heaps are swept when their stale entries exceed the live ones by this number.
_SLACK = 64


@dataclass(slots=True)
class _Backlog:
    """Hold the waiting requests of a tenant: (due, sequence, request id), with entries of requests that left."""

    heap: list[tuple[float, int, str]] = field(default_factory=list)
    live_count: int = 0
    deficit: float = 0.0


class FairQueue:
    """Queue requests of tenants that take turns. A turn is worth a quantum, fixed for a round as the mean work of the
    waiting requests, times the tenant's weight. Of two tenants of one weight that always have requests waiting, neither
    is ever served more than three of the largest requests ahead."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Make an empty queue. `weights` by tenant, read at every turn; 1 for tenants without one."""
        self._weights = weights if weights is not None else {}
        self._backlogs: OrderedDict[str, _Backlog] = OrderedDict()
        # Request id -> (sequence, tenant, work).
        self._waiting: dict[str, tuple[int, str, float]] = {}
        self._work = 0.0
        self._sequence = 0
        self._visiting: str | None = None
        self._visits_left = 0
        self._quantum = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the waiting requests in order of arrival."""
        return iter(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def push(self, request_id: str, tenant: str, due: float, work: float) -> None:
        """Add a request, unless it waits already; O(log n) in the tenant's waiting requests."""
        if request_id in self._waiting:
            return
        self._sequence += 1
        self._waiting[request_id] = (self._sequence, tenant, work)
        self._work += work
        backlog = self._backlogs.get(tenant)
        if backlog is None:
            backlog = self._backlogs[tenant] = _Backlog()
        backlog.live_count += 1
        heapq.heappush(backlog.heap, (due, self._sequence, request_id))

    def first_of(self, may_go: Callable[[str], bool]) -> str | None:
        """Return the next request, among tenants with a first request that may go; None if there is none. Changes the
        round, not the waiting requests. A tenant that is passed over saves at most the work of its first request."""
        passed = held_up = 0
        while held_up < len(self._backlogs):
            tenant, backlog = next(iter(self._backlogs.items()))
            request_id, work = self._head(backlog)
            if not may_go(request_id):
                held_up += 1
                backlog.deficit = min(backlog.deficit, work)
                self._pass_on(tenant)
                continue
            held_up = 0
            if tenant != self._visiting:
                self._begin_visit(tenant, backlog)
            if work <= backlog.deficit:
                return request_id
            self._pass_on(tenant)
            passed += 1
            if passed > len(self._backlogs):
                self._skip_rounds(may_go)
        return None

    def _pass_on(self, tenant: str) -> None:
        self._backlogs.move_to_end(tenant)
        self._visiting = None

    def serve(self, request_id: str) -> None:
        """Remove the first request, and charge its work to its tenant."""
        _, tenant, work = self._waiting[request_id]
        self._backlogs[tenant].deficit -= work
        self.discard(request_id)

    def discard(self, request_id: str) -> None:
        """Remove a request, if it waits, without a charge."""
        entry = self._waiting.pop(request_id, None)
        if entry is None:
            return
        _, tenant, work = entry
        self._work = self._work - work if self._waiting else 0.0
        backlog = self._backlogs[tenant]
        backlog.live_count -= 1
        if not backlog.live_count:
            # The rest of a turn is not saved.
            del self._backlogs[tenant]
            if self._visiting == tenant:
                self._visiting = None
        elif len(backlog.heap) > 2 * backlog.live_count + _SLACK:
            backlog.heap = [item for item in backlog.heap if self._is_live(item)]
            heapq.heapify(backlog.heap)

    def _begin_visit(self, tenant: str, backlog: _Backlog) -> None:
        if self._visits_left <= 0:
            self._quantum, self._visits_left = self._work / len(self._waiting), len(self._backlogs)
        self._visits_left -= 1
        self._visiting = tenant
        backlog.deficit += self._quantum * self._weights.get(tenant, 1.0)

    def _skip_rounds(self, may_go: Callable[[str], bool]) -> None:
        """Give all rounds that are missing in one call, since the first request of each tenant that may go is larger
        than its deficit."""
        found = [(self._head(backlog), backlog, tenant) for tenant, backlog in self._backlogs.items()]
        heads = [
            (work, backlog, self._weights.get(tenant, 1.0))
            for (request_id, work), backlog, tenant in found
            if may_go(request_id)
        ]
        if not self._quantum > 0.0:
            # After many subtractions the sum may have no precision left.
            self._quantum = max(work for work, _, _ in heads)
        lacking = min((work - backlog.deficit) / weight for work, backlog, weight in heads)
        rounds = math.floor(lacking / self._quantum)
        for _, backlog, weight in heads:
            backlog.deficit += rounds * self._quantum * weight

    def _head(self, backlog: _Backlog) -> tuple[str, float]:
        while not self._is_live(backlog.heap[0]):
            heapq.heappop(backlog.heap)
        request_id = backlog.heap[0][2]
        return request_id, self._waiting[request_id][2]

    def _is_live(self, item: tuple[float, int, str]) -> bool:
        entry = self._waiting.get(item[2])
        return entry is not None and entry[0] == item[1]
