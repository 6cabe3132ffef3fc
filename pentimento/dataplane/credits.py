"""The credits of workers: who may be offered work, and what is taken."""

from pentimento.dataplane.events import AttemptKey
from pentimento.dataplane.state import LaneKey, State, Worker


def take(state: State, worker: Worker, key: AttemptKey) -> None:
    worker.in_flight[key] = None
    state.attempt_workers[key] = worker.worker_id
    refresh(state, worker)


def give_back(state: State, key: AttemptKey) -> Worker | None:
    """The worker that held the attempt; None if it is not in flight any more (a late or repeated word)."""
    worker_id = state.attempt_workers.pop(key, None)
    if worker_id is None:
        return None
    worker = state.workers[worker_id]
    del worker.in_flight[key]
    worker.begun.pop(key, None)
    refresh(state, worker)
    return worker


def is_eligible(state: State, worker: Worker) -> bool:
    """Plans are intent: a worker that the plan leaves out gets nothing, unless the operator named it."""
    if not worker.connected or not worker.confirmed or worker.draining:
        return False
    return worker.pinned or worker.worker_id in state.assigned


def refresh(state: State, worker: Worker) -> None:
    """Offer the worker in its lanes exactly while it has a free credit."""
    free = is_eligible(state, worker) and worker.used_credits < worker.credit_count
    for key in lanes_of(worker):
        lane = state.lane(key)
        if free:
            lane.ready.set(worker.worker_id, worker.used_credits)
            state.dirty[key] = None
        else:
            lane.ready.discard(worker.worker_id)


def lanes_of(worker: Worker) -> tuple[LaneKey, ...]:
    return tuple((pool, worker.model_digest) for pool in worker.pools)
