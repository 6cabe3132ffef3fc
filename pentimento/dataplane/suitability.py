"""Which of the workers with a free credit a request goes to: one that has what it needs, and where it costs least."""

from pentimento.dataplane.pools import Worker
from pentimento.dataplane.ready import ReadyWorkers
from pentimento.dataplane.requests import LaneKey, Request
from pentimento.dataplane.state import State
from pentimento.policies.adapter_needs import can_paint, least_missed, load_count

# Of workers of one cost, so many are compared for a request without adapters.
MAX_COMPARED = 8


def suits(request: Request, worker: Worker) -> bool:
    """Return whether the worker can paint the request with its adapters."""
    return not request.needs or can_paint(request.needs, worker.holdings)


def cheapest_worker(state: State, key: LaneKey, request: Request) -> Worker | None:
    """Return the worker of the lane that has room for the request, suits it, and on which it costs least, with what it
    would have to load; None where there is none. O(log n) in the workers with room for a request without adapters, O(n)
    for one with."""
    takers = state.lanes[key].takers(request)
    if not takers:
        return None
    if not request.needs:
        return _least_missed(state, takers)
    costs = takers.costs()
    suited = [state.workers[worker_id] for worker_id in costs if suits(request, state.workers[worker_id])]
    profiled = state.pool(key[0]).speed.profile is not None
    # Costs are seconds for each unit of work; before speeds are known they are the requests that a worker has.
    work, load_cost = (request.work, state.settings.adapter_load_s) if profiled else (1.0, 1.0)

    def cost(worker: Worker) -> tuple[float, int]:
        place, since = costs[worker.worker_id]
        return (work * place + load_cost * load_count(request.needs, worker.holdings), since)

    return min(suited, key=cost, default=None)


def _least_missed(state: State, ready: ReadyWorkers) -> Worker:
    """Of the cheapest, which are as good as one another for a request without adapters, the one whose LoRAs the others
    have as well."""
    first = state.workers[ready.first()]
    if not (first.holdings.loras or first.holdings.resident):
        # Nobody has fewer that would be missed, and the first of several is taken.
        return first
    workers = [state.workers[name] for name in ready.cheapest(MAX_COMPARED)]
    return workers[least_missed([worker.holdings for worker in workers])]
