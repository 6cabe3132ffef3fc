"""Predict when a request ends: its turn, once enough credits are free for the requests before it, and its service."""

import math

from pentimento.dataplane.events import RequestArrived
from pentimento.dataplane.pools import Pool, Worker
from pentimento.dataplane.requests import Request
from pentimento.dataplane.speed import Speed, averaged
from pentimento.dataplane.state import State

# Used until a pool's speed is known.
DEFAULT_WAIT_S = 5.0
MIN_RETRY_AFTER_MS = 100
MAX_RETRY_AFTER_MS = 600_000


def predicted_wait_s(state: State, pool_name: str) -> float:
    """Return the seconds that a request admitted now would wait for a worker, by its pool's throughput."""
    pool = state.pools.get(pool_name)
    if pool is None:
        return DEFAULT_WAIT_S
    if pool.running_count < pool.credit_count and pool.waiting_count == 0:
        return 0.0
    if pool.throughput <= 0.0 or pool.speed.slowdown is None:
        return DEFAULT_WAIT_S
    return pool.waiting_work * pool.speed.slowdown / pool.throughput


def service_s(state: State, pool_name: str, work: float) -> float | None:
    """Return the seconds that a request takes in the pool in a batch of one; None if no speed is known yet."""
    pool = state.pools.get(pool_name)
    return pool.speed.seconds(work, 1) if pool is not None else None


def predicted_end_s(state: State, now: float, pool: Pool, request: Request | RequestArrived) -> float | None:
    """Return the seconds until a request that joins the queue now would end. None if unknown, or if it would start
    immediately: then no request waits for it and it may run. An admitted request is already in the pool's counts and
    does not wait for itself. For several requests that arrive together it is the end of the last.

    Tenants take turns: before its service, each other tenant is served as much work as its own, or all that it has.
    """
    work, backlog = request.work, pool.tenants.get(request.tenant)
    # A request that fits only with thinning is still admitted.
    least_share = request.thinning.least_share if state.thins else 1.0
    waiting_share = pool.waiting_least_work / pool.waiting_work if state.thins and pool.waiting_work > 0.0 else 1.0
    own_work = backlog.work if backlog is not None else 0.0
    others = len(pool.tenants) - (backlog is not None)
    ahead = min(pool.waiting_work, own_work + others * (own_work + work))
    beside = 0 if isinstance(request, Request) else len(request.others)
    ahead += -work if isinstance(request, Request) else work * beside
    batch = full_batch(pool)
    turn_s = _turn_s(pool, now, ahead, batch, waiting_share, work if beside else 0.0)
    service_s = pool.speed.seconds(work * least_share, batch, margin=state.settings.prediction_margin)
    return None if turn_s is None or service_s is None else turn_s + service_s


def full_batch(pool: Pool) -> int:
    """Return the batch size of a full worker of the pool: its share of the credits, at least 1."""
    return max(round(pool.credit_count / max(len(pool.workers), 1)), 1)


def expected_service_s(pool: Pool, worker: Worker, work: float) -> float:
    """Return the seconds that the request takes on a worker with a full batch, since requests wait; 0 if no speed is
    known yet."""
    return pool.speed.seconds(work, max(worker.credit_count, worker.used_credits + 1), worker.slowdown) or 0.0


def predicted_service_s(state: State, pool: Pool, worker: Worker, work: float) -> float | None:
    """Return the seconds that the request takes once it joins the worker's batch; None if no speed is known yet."""
    return pool.speed.seconds(work, worker.used_credits + 1, worker.slowdown, state.settings.prediction_margin)


def retry_after_ms(state: State, now: float, pool_name: str, late_s: float = 0.0) -> int:
    """Return the milliseconds after which another try is worthwhile: when half of the queue is served, so that clients
    that return do not all meet a full queue, and a running request has released its credit. `late_s`: the seconds by
    which the request would miss its deadline; the work before it must shrink by as much."""
    wait_s = max(predicted_wait_s(state, pool_name) / 2, _first_credit_s(state, now, pool_name), late_s)
    return round(min(max(wait_s * 1000, MIN_RETRY_AFTER_MS), MAX_RETRY_AFTER_MS))


def _first_credit_s(state: State, now: float, pool_name: str) -> float:
    """Return the seconds until a running request is expected to end; 0 if a credit is free, or none is in use."""
    pool = state.pools.get(pool_name)
    if pool is None or not pool.ends or len(pool.ends) < pool.credit_count:
        return 0.0
    return max(pool.ends[0] - now, 0.0)


def learn_speed(state: State, request: Request, worker: Worker, seconds: float, work: float) -> None:
    """Correct the slowdown of pool and worker by an image that took `seconds` for that work. The mean batch size is
    taken as the middle of the sizes at its start and its end."""
    speed = state.pool(request.pool).speed
    ratio = _ratio(speed, request, worker, seconds, work)
    if ratio is not None:
        speed.learn(ratio)
        worker.slowdown = averaged(worker.slowdown, ratio)


def learn_slowness(state: State, request: Request, seconds: float) -> None:
    """Raise the slowdown by an attempt that was abandoned after `seconds`. Finished images alone would never show a
    device that has become too slow for any deadline."""
    worker = state.workers.get(request.worker_id)
    if worker is None:
        return
    speed = state.pool(request.pool).speed
    ratio = _ratio(speed, request, worker, seconds, request.attempt_work)
    if ratio is None:
        return
    if speed.slowdown is None or ratio > speed.slowdown:
        speed.learn(ratio)
    if worker.slowdown is None or ratio > worker.slowdown:
        worker.slowdown = averaged(worker.slowdown, ratio)


def _ratio(speed: Speed, request: Request, worker: Worker, seconds: float, work: float) -> float | None:
    """Return the seconds that the attempt took, divided by its nominal seconds; None if either is invalid."""
    nominal_s = speed.nominal_s(work, (request.started_load + worker.used_credits + 1) // 2)
    return seconds / nominal_s if nominal_s > 0.0 and seconds >= 0.0 else None


def _turn_s(
    pool: Pool, now: float, work_ahead: float, batch: int, waiting_share: float, own_work: float
) -> float | None:
    """Return the seconds until a credit is free for a request after `work_ahead`; None if one is free, or none in use.

    Running requests free their credits at their expected ends, and again a service time later. Attempts that began
    together end together: a mean over time would be too early for some requests and too late for others. The waiting
    requests have to do `waiting_share` of their work. If none waits, those ahead arrived with it, with `own_work` each;
    0 if none did.
    """
    mean_work = pool.waiting_work / pool.waiting_count if pool.waiting_count else own_work
    ahead_count = math.floor(work_ahead / mean_work + 0.5) if mean_work > 0.0 else 0
    place = ahead_count - (pool.credit_count - len(pool.ends))
    if place < 0 or not pool.ends:
        return None
    rounds, number = divmod(place, len(pool.ends))
    round_s = pool.speed.seconds(mean_work * waiting_share, batch)
    return None if round_s is None else max(pool.ends[number] - now, 0.0) + rounds * round_s
