"""Which of the workers with a free credit a request goes to: one that has what it needs, and where it costs least."""

from pentimento.dataplane.state import LaneKey, Request, State, Worker
from pentimento.policies.adapter_needs import can_paint, load_count


def suits(request: Request, worker: Worker) -> bool:
    """Return whether the worker can paint the request with its adapters."""
    return not request.needs or can_paint(request.needs, worker.holdings)


def cheapest_worker(state: State, key: LaneKey, request: Request) -> Worker | None:
    """Return the ready worker of the lane that suits the request and on which it costs least, with what it would have
    to load; None where none suits. IndexError where none is ready. O(log n) in the ready workers for a request without
    adapters, O(n) for one with."""
    lane = state.lanes[key]
    if not request.needs:
        return state.workers[lane.ready.first()]
    costs = lane.ready.costs()
    suited = [state.workers[worker_id] for worker_id in costs if suits(request, state.workers[worker_id])]
    profiled = state.pool(key[0]).speed.profile is not None
    # Costs are seconds for each unit of work; before speeds are known they are the requests that a worker has.
    work, load_cost = (request.work, state.settings.adapter_load_s) if profiled else (1.0, 1.0)

    def cost(worker: Worker) -> tuple[float, int]:
        place, since = costs[worker.worker_id]
        return (work * place + load_cost * load_count(request.needs, worker.holdings), since)

    return min(suited, key=cost, default=None)
