"""Choose the steps that an attempt skips, by its deadline and its pool's load, when it gets its worker and while it
runs."""

from dataclasses import replace

from pentimento.dataplane.effects import Effect, ThinAttempt
from pentimento.dataplane.events import AttemptProgressed
from pentimento.dataplane.pools import Pool, Worker
from pentimento.dataplane.predictions import full_batch, predicted_wait_s
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State
from pentimento.policies.thinning import Pressure, ThinningOffer, ThinningOption, choose, takes_fewest, thinned_steps

# Share of the credits of a pool: if more requests wait, they wait longer than that share of an image's time.
OVERLOADED_SHARE = 0.25


def settle_thinning(state: State, now: float, request: Request, worker: Worker) -> None:
    """Choose the steps of the attempt that is about to start on the worker, and set its work."""
    request.thinned_steps, request.thinned_work, request.seen = (), 0.0, None
    offer = request.thinning
    if not state.thins or not offer.options:
        return
    option = choose(state.settings.thinning, offer, _pressure(state, now, request, worker))
    if option is not None:
        _take(state, request, option)


def _take(state: State, request: Request, option: ThinningOption) -> None:
    offer = request.thinning
    request.thinned_steps = thinned_steps(option, offer.step_count)
    request.thinned_work = request.work * offer.remaining_with(option) / offer.remaining_cost
    state.counters.thinned += 1


def on_attempt_progressed(state: State, now: float, event: AttemptProgressed) -> list[Effect]:
    """Thin a running image if its deadline or the load of its pool now requires it. An attempt that already runs fewer
    steps continues; if the request for it came too late, send another."""
    request = state.requests.get(event.request_id)
    key = event.key
    worker = state.workers.get(state.attempt_workers.get(key, ""))
    if worker is None or request is None or request.attempt_key != key:
        return []
    if request.phase is not Phase.RUNNING or not request.thinning.options or _is_followed(request, event.step):
        return []
    was_late = bool(request.thinned_steps)
    if was_late:
        # It had passed the first requested step.
        request.thinned_steps, request.thinned_work = (), 0.0
        state.counters.thinned -= 1
    request.seen = request.seen or (event.step, now)
    # The next step may have begun when the worker receives the effect.
    offer = replace(request.thinning, next_step=max(event.step + 1, request.thinning.next_step))
    pressure = _pressure_midway(state, now, request, worker, event.step)
    option = choose(state.settings.thinning, offer, pressure)
    if pressure.step_s and (option is not None or was_late):
        left = offer.remaining_with(option) if option is not None else offer.remaining_cost
        state.pool(request.pool).expect_credit(request, now + left * pressure.step_s)
    if option is None:
        return []
    _take(state, request, option)
    return [ThinAttempt(*key, worker.worker_id, request.thinned_steps)]


def _is_followed(request: Request, step: int) -> bool:
    """Return whether the attempt runs the requested steps, by its reported step."""
    thinned = request.thinned_steps
    return bool(thinned) and (step < thinned[0] or step in thinned or step >= request.thinning.step_count)


def _pressure_midway(state: State, now: float, request: Request, worker: Worker, step: int) -> Pressure:
    """Return the pressure with predicted seconds per step, or with the measured ones if they are longer."""
    pool = state.pool(request.pool)
    left_s = request.deadline - now
    count = request.thinning.remaining_cost
    batch, overloaded = max(worker.used_credits, 1), is_overloaded(state, pool, pool.waiting_count)
    told = _pressure_in(state, pool, request.work, count, batch, worker.slowdown, left_s, overloaded)
    since, at = request.seen or (step, now)
    seen_s = (now - at) / (step - since) if step > since else 0.0
    if told.step_s is None:
        return Pressure(seen_s, left_s, overloaded)
    return replace(told, step_s=max(told.step_s, seen_s))


def least_work(state: State, request: Request) -> float:
    """Return the least work of a request: all its work if nothing is thinned."""
    return request.least_work if state.thins else request.work


def is_overloaded(state: State, pool: Pool, others_waiting: int) -> bool:
    """Return whether demand exceeds the pool's capacity, for a request that waits with `others_waiting` others: the
    plan thins the pool or admits only a share, or too many wait to begin soon."""
    planned = state.plan is not None and state.plan.admission_rate < 1.0
    return pool.thins or planned or others_waiting > OVERLOADED_SHARE * pool.credit_count


def is_shorter_from_noise(state: State, pool_name: str, noise: ThinningOffer, steps_left: int) -> bool:
    """Return whether a request that arrives at the pool now would run fewer steps from noise, some steps skipped,
    than the `steps_left` after a cached latent."""
    pool = state.pools.get(pool_name)
    overloaded = pool is not None and is_overloaded(state, pool, pool.waiting_count)
    fewest = takes_fewest(state.settings.thinning, overloaded)
    return fewest and bool(noise.usable) and noise.least_count < steps_left


def device_s(state: State, pool_name: str, work: float, offer: ThinningOffer) -> float | None:
    """Return the device seconds of a request of that work in the pool now: its share of a full batch, without the steps
    that would be skipped for any deadline. None if no speed is known."""
    pool = state.pools.get(pool_name)
    if pool is None:
        return None
    fewest = takes_fewest(state.settings.thinning, is_overloaded(state, pool, pool.waiting_count))
    batch = full_batch(pool)
    seconds = pool.speed.seconds(work * (offer.least_share if fewest else 1.0), batch)
    return None if seconds is None else seconds / batch


def foreseen_pressure(state: State, pool: Pool, work: float, step_count: float, deadline_s: float) -> Pressure:
    """Return the time per whole step and the time left for a request that arrives at the pool now: after the predicted
    wait, in a full batch."""
    left_s = deadline_s - predicted_wait_s(state, pool.name)
    overloaded = is_overloaded(state, pool, pool.waiting_count)
    return _pressure_in(state, pool, work, step_count, full_batch(pool), None, left_s, overloaded)


def _pressure(state: State, now: float, request: Request, worker: Worker) -> Pressure:
    """Return the pressure in the worker's full batch, since arriving requests join it next."""
    pool = state.pool(request.pool)
    left_s = request.deadline - now
    count = request.thinning.remaining_cost
    batch = max(worker.credit_count, worker.used_credits + 1)
    overloaded = is_overloaded(state, pool, pool.waiting_count - 1)
    return _pressure_in(state, pool, request.work, count, batch, worker.slowdown, left_s, overloaded)


def _pressure_in(
    state: State,
    pool: Pool,
    work: float,
    step_count: float,
    batch: int,
    slowdown: float | None,
    left_s: float,
    overloaded: bool,
) -> Pressure:
    margin = state.settings.prediction_margin
    whole_s = pool.speed.seconds(work, batch, slowdown, margin)
    fixed_s = pool.speed.seconds(0.0, batch, slowdown, margin)
    if whole_s is None or fixed_s is None:
        return Pressure(None, None, overloaded)
    return Pressure((whole_s - fixed_s) / step_count, left_s - fixed_s, overloaded)
