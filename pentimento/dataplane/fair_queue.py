"""Whose request is next: deficit round robin over tenants (Shreedhar and Varghese, 1995), the earliest due of each."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

# Heaps are swept when so many entries more than live ones are in them.
_SLACK = 64


@dataclass(slots=True)
class _Backlog:
    """What a tenant has waiting: (due, sequence, request id), entries of those that left included."""

    heap: list[tuple[float, int, str]] = field(default_factory=list)
    live_count: int = 0
    deficit: float = 0.0


class FairQueue:
    """A queue in which tenants take turns, each worth a quantum of work that lasts for a round, the mean of what waits,
    times the tenant's weight. Of two tenants of one weight that always have something waiting, neither is ever served
    more than three of the largest requests ahead."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """`weights` by tenant, read at every turn; 1 for those that are not in it."""
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
        """Iterate over what waits, in the order in which it came."""
        return iter(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def push(self, request_id: str, tenant: str, due: float, work: float) -> None:
        """Add a request, unless it waits already; O(log n) in what the tenant has waiting."""
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
        """Return the request whose turn it is, of the tenants whose own first request may go; None where nobody's may.
        Changes the round, not what waits. Who is passed over saves up no more than that request."""
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
        """Take out the first request, at its tenant's expense."""
        _, tenant, work = self._waiting[request_id]
        self._backlogs[tenant].deficit -= work
        self.discard(request_id)

    def discard(self, request_id: str) -> None:
        """Take out a request, if it is there, at nobody's expense."""
        entry = self._waiting.pop(request_id, None)
        if entry is None:
            return
        _, tenant, work = entry
        self._work = self._work - work if self._waiting else 0.0
        backlog = self._backlogs[tenant]
        backlog.live_count -= 1
        if not backlog.live_count:
            # What is left of a turn is not saved up.
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
        """Every head that may go is larger than its tenant's deficit: give those at once the rounds that are
        lacking."""
        found = [(self._head(backlog), backlog, tenant) for tenant, backlog in self._backlogs.items()]
        heads = [
            (work, backlog, self._weights.get(tenant, 1.0))
            for (request_id, work), backlog, tenant in found
            if may_go(request_id)
        ]
        if not self._quantum > 0.0:
            # What is left of a sum after many subtractions may be nothing at all.
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
