"""Which steps an attempt leaves out, decided when it gets its worker: by its deadline and the load of its pool."""

from pentimento.dataplane.pools import Pool, Worker
from pentimento.dataplane.predictions import predicted_wait_s
from pentimento.dataplane.requests import Request
from pentimento.dataplane.state import State
from pentimento.policies.thinning import Pressure, choose, thinned_steps

# Of the credits of a pool: where others wait for more, they wait for longer than that share of a picture's time.
OVERLOADED_SHARE = 0.25


def settle_thinning(state: State, now: float, request: Request, worker: Worker) -> None:
    """Decide which steps the attempt that is about to start on the worker takes, and what work that is."""
    request.thinned_steps, request.thinned_work = (), 0.0
    offer = request.thinning
    if not state.thins or not offer.options:
        return
    option = choose(state.settings.thinning, offer, _pressure(state, now, request, worker))
    if option is not None:
        request.thinned_steps = thinned_steps(option, offer.step_count)
        request.thinned_work = request.work * offer.remaining_with(option) / offer.remaining_count
        state.counters.thinned += 1


def least_work(state: State, request: Request) -> float:
    """Return what a request has to do at the least: all, where nothing is thinned."""
    return request.least_work if state.thins else request.work


def is_overloaded(state: State, pool: Pool, others_waiting: int) -> bool:
    """Return whether more is asked of the pool than it can paint, at the turn of one beside whom so many wait: the plan
    admits a share alone, or those are too many to begin soon."""
    planned = state.plan is not None and state.plan.admission_rate < 1.0
    return planned or others_waiting > OVERLOADED_SHARE * pool.credit_count


def foreseen_pressure(state: State, pool: Pool, work: float, step_count: int, deadline_s: float) -> Pressure:
    """Return how much time there would be for the `step_count` steps of a request of that work that came to the pool
    now: after the wait that is predicted, in a batch that is full."""
    batch = max(round(pool.credit_count / max(len(pool.workers), 1)), 1)
    left_s = deadline_s - predicted_wait_s(state, pool.name)
    overloaded = is_overloaded(state, pool, pool.waiting_count)
    return _pressure_in(pool, work, step_count, batch, None, state.settings.prediction_margin, left_s, overloaded)


def _pressure(state: State, now: float, request: Request, worker: Worker) -> Pressure:
    """Seconds are those of the worker's batch once it is full: who waits joins it next."""
    pool, margin = state.pool(request.pool), state.settings.prediction_margin
    batch = worker.used_credits + 1 if not pool.waiting_count else max(worker.credit_count, worker.used_credits + 1)
    overloaded, left_s = is_overloaded(state, pool, pool.waiting_count - 1), request.deadline - now
    step_count = request.thinning.remaining_count
    return _pressure_in(pool, request.work, step_count, batch, worker.slowdown, margin, left_s, overloaded)


def _pressure_in(
    pool: Pool,
    work: float,
    step_count: int,
    batch: int,
    slowdown: float | None,
    margin: float,
    left_s: float,
    overloaded: bool,
) -> Pressure:
    whole_s = pool.speed.seconds(work, batch, slowdown, margin)
    fixed_s = pool.speed.seconds(0.0, batch, slowdown, margin)
    if whole_s is None or fixed_s is None:
        return Pressure(None, None, overloaded)
    return Pressure((whole_s - fixed_s) / step_count, left_s - fixed_s, overloaded)
