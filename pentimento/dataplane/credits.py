"""Track the credits of workers: which workers can take attempts, and which credits are in use."""

import math

from pentimento.dataplane.events import AttemptKey
from pentimento.dataplane.pools import Pool, Worker
from pentimento.dataplane.state import State


def may_prepare(worker: Worker) -> bool:
    """Return whether the worker would prepare the inputs of one more attempt, which holds no credit until it begins."""
    return len(worker.preparing) < worker.preparing_count


def take(state: State, worker: Worker, key: AttemptKey, *, preparing: bool = False) -> None:
    """Take a credit of the worker for an attempt, or a place to prepare its inputs."""
    worker.in_flight[key] = None
    if preparing:
        worker.preparing[key] = None
    state.attempt_workers[key] = worker.worker_id
    refresh(state, worker)


def take_as_peer(state: State, worker: Worker, key: AttemptKey) -> None:
    """Take a credit of the worker for the other half of an attempt's guidance."""
    worker.in_flight[key] = None
    state.peers[key] = worker.worker_id
    refresh(state, worker)


def end_preparing(state: State, worker: Worker, key: AttemptKey) -> None:
    """Count a credit for an attempt with prepared inputs: it is at the device, even if no credit is free."""
    del worker.preparing[key]
    refresh(state, worker)


def yield_credit(state: State, worker: Worker, key: AttemptKey) -> None:
    """Free the credit of an attempt that is still running, so that another one can arrive early."""
    worker.preparing.pop(key, None)
    worker.yielded[key] = None
    refresh(state, worker)


def give_back(state: State, key: AttemptKey) -> Worker | None:
    """Free the attempt's credit and return its worker; None if the attempt is no longer in flight (a late or repeated
    event)."""
    worker_id = state.attempt_workers.pop(key, None)
    if worker_id is None:
        return None
    give_back_peer(state, key)
    worker = state.workers[worker_id]
    del worker.in_flight[key]
    worker.preparing.pop(key, None)
    worker.begun.pop(key, None)
    worker.yielded.pop(key, None)
    refresh(state, worker)
    return worker


def give_back_peer(state: State, key: AttemptKey) -> None:
    """Free the credit that a second worker held for the attempt's guidance, if one did."""
    peer_id = state.peers.pop(key, None)
    if peer_id is not None:
        peer = state.workers[peer_id]
        del peer.in_flight[key]
        refresh(state, peer)


def is_eligible(state: State, worker: Worker) -> bool:
    """Return whether the worker may receive attempts. A worker outside the plan receives none, unless the operator
    pinned it."""
    if not worker.connected or not worker.confirmed or worker.draining:
        return False
    return worker.pinned or worker.worker_id in state.index.assigned


def refresh(state: State, worker: Worker) -> None:
    """Offer the worker in its lanes while it has a free credit, else to urgent requests while it has a reserve, and to
    requests with inputs while it can prepare them."""
    beyond = worker.used_credits - worker.credit_count if is_eligible(state, worker) else math.inf
    prepares = _prepares(worker, beyond)
    for key in worker.lane_keys:
        lane = state.lanes[key]
        if prepares:
            lane.preparers.set(worker.worker_id, _cost(state.pools[key[0]], worker))
        else:
            lane.preparers.discard(worker.worker_id)
        if prepares and lane.inputs:
            state.dirty[key] = None
        if beyond < 0:
            lane.ready.set(worker.worker_id, _cost(state.pools[key[0]], worker))
            lane.reserve.discard(worker.worker_id)
            state.dirty[key] = None
            continue
        lane.ready.discard(worker.worker_id)
        if beyond < worker.reserve_count and worker.in_flight:
            lane.reserve.set(worker.worker_id, -latest_deadline(state, worker))
            state.dirty[key] = None
        else:
            lane.reserve.discard(worker.worker_id)


def _prepares(worker: Worker, beyond: float) -> bool:
    """Decide whether the worker would take a request with inputs; one without preparing places needs a free credit.
    While prepared attempts exceed its credits it takes no further one: they would use the turns of other requests."""
    if not worker.preparing_count:
        return beyond < 0
    return may_prepare(worker) and worker.credit_count > 0 and beyond <= 0


def latest_deadline(state: State, worker: Worker) -> float:
    """Return the latest deadline of the attempts that the worker denoises, except those about to end; -inf if there are
    none."""
    return max(
        (
            state.requests[key[0]].deadline
            for key in worker.in_flight
            if key not in worker.yielded and key not in worker.preparing and key[0] in state.requests
        ),
        default=-math.inf,
    )


def count(state: State, worker: Worker) -> None:
    """Update the worker's contribution to the credits and the throughput of its pools."""
    credits, pools = worker.credit_count, worker.pools if worker.connected and not worker.draining else ()
    counted = tuple((pool, credits, state.pool(pool).speed.throughput(credits) if credits else 0.0) for pool in pools)
    if counted == worker.counted:
        return
    for name, credits, throughput in worker.counted:
        _add(state.pool(name), -credits, -throughput)
    for name, credits, throughput in counted:
        _add(state.pool(name), credits, throughput)
    worker.counted = counted


def _add(pool: Pool, credits: int, throughput: float) -> None:
    pool.credit_count += credits
    pool.throughput = pool.throughput + throughput if pool.credit_count else 0.0


def _cost(pool: Pool, worker: Worker) -> float:
    """Return the cost of the next request on the worker: its load or, if speeds are known, the seconds in a batch
    larger by one. Rounded, so that noise in measured speeds does not decide which worker idles."""
    load = worker.used_credits + len(worker.preparing)
    if pool.speed.profile is None:
        return load
    slowdown = worker.slowdown if worker.slowdown is not None else 1.0
    return float(f"{slowdown * pool.speed.crowded_s(load + 1):.2g}")
