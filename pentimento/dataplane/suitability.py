"""Choose the worker for a request: one with a free credit that has its adapters, at the lowest cost."""

from pentimento.dataplane.pools import Worker
from pentimento.dataplane.ready import ReadyWorkers
from pentimento.dataplane.requests import LaneKey, Request
from pentimento.dataplane.state import State
from pentimento.policies.adapter_needs import can_paint, least_missed, load_count, loading_s

# Workers of equal cost compared for a request without adapters.
MAX_COMPARED = 8


def suits(request: Request, worker: Worker) -> bool:
    """Return whether the worker can run the request with its adapters."""
    return not request.needs or can_paint(request.needs, worker.holdings)


def cheapest_worker(state: State, key: LaneKey, request: Request) -> Worker | None:
    """Return the lane's worker that has room for the request, suits it, and has the lowest cost including adapter
    loads; None if there is none. O(log n) in the workers with room for a request without adapters, O(n) for one with
    adapters."""
    takers = state.lanes[key].takers(request)
    if not takers:
        return None
    if not request.needs:
        return _least_missed(state, takers)
    costs = takers.costs()
    suited = [state.workers[worker_id] for worker_id in costs if suits(request, state.workers[worker_id])]
    profiled = state.pool(key[0]).speed.profile is not None

    def cost(worker: Worker) -> tuple[float, int]:
        place, since = costs[worker.worker_id]
        if not profiled:
            # Before speeds are known, costs are numbers of requests, and a load counts as one.
            return place + load_count(request.needs, worker.holdings), since
        # Costs are seconds for each unit of work.
        loading = loading_s(request.needs, worker.holdings, state.settings.adapter_load_s)
        return request.work * place + loading, since

    return min(suited, key=cost, default=None)


def _least_missed(state: State, ready: ReadyWorkers) -> Worker:
    """Return, among the cheapest workers, the one with LoRAs that the others hold too: for a request without adapters
    they are equally good."""
    first = state.workers[ready.first()]
    if not (first.holdings.loras or first.holdings.resident):
        # No worker holds fewer LoRAs; the first of several is taken.
        return first
    workers = [state.workers[name] for name in ready.cheapest(MAX_COMPARED)]
    return workers[least_missed([worker.holdings for worker in workers])]
