"""Late binding: a request leaves the queue only when a worker that holds its model has a free credit."""

from pentimento.dataplane.attempts import start_attempt
from pentimento.dataplane.effects import Effect
from pentimento.dataplane.state import Lane, LaneKey, Request, State, Worker


def dispatch(state: State, now: float) -> list[Effect]:
    """Pair requests with credits in every lane where either has come."""
    effects: list[Effect] = []
    while state.dirty:
        key = next(iter(state.dirty))
        del state.dirty[key]
        effects += _dispatch_lane(state, now, key)
    return effects


def _dispatch_lane(state: State, now: float, key: LaneKey) -> list[Effect]:
    lane = state.lanes[key]
    effects: list[Effect] = []
    for request_id in tuple(lane.reruns) if lane.ready else ():
        request = state.requests[request_id]
        worker = _worker_for_rerun(state, now, lane, request)
        if worker is not None:
            effects.append(start_attempt(state, now, request, worker))
    while lane.fresh and lane.ready:
        request = state.requests[next(iter(lane.fresh))]
        worker = state.workers[next(iter(lane.ready))]
        effects.append(start_attempt(state, now, request, worker))
    return effects


def _worker_for_rerun(state: State, now: float, lane: Lane, request: Request) -> Worker | None:
    """Not where it was lost before, unless nobody else is there; a suspect waits for a second worker."""
    others = state.pool(request.pool).workers.values()
    holders = [worker for worker in others if worker.holds(request.model_digest)]
    if len(holders) < 2 and now < request.suspect_until:
        return None
    ready = [state.workers[worker_id] for worker_id in lane.ready]
    unspoilt = next((worker for worker in ready if not _spoilt(request, worker)), None)
    if unspoilt is not None or not all(_spoilt(request, worker) for worker in holders):
        return unspoilt
    return next(iter(ready), None)


def _spoilt(request: Request, worker: Worker) -> bool:
    return (worker.worker_id, worker.worker_generation) in request.excluded
