"""Which pools a new request goes through, read from the plan, so that a router needs nothing but the plan.

A pool's `routes` say which share of the requests of each start it takes first: `noise`, `latent`, `image`. A pool with
the route `spare` takes hits of other pools while it has nothing of its own (MoDM's large workers). A pool with a
confidence threshold above 0 sends what its discriminator refuses on to the next pool of the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pentimento.domain.fleet import PoolPlan, RouteShare

NOISE, LATENT, IMAGE, SPARE = "noise", "latent", "image", "spare"
EVERY_START = (RouteShare(NOISE, 1.0), RouteShare(LATENT, 1.0), RouteShare(IMAGE, 1.0))


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a cascade: its pool, its model, and the confidence from which its picture is good enough."""

    pool: str
    model: str
    confidence_threshold: float = 0.0


def entry_pools(pools: Sequence[PoolPlan], start: str, draw: float) -> tuple[PoolPlan, ...]:
    """Return the pool that a request of this start enters, and those its cascade may send it on to.

    `draw` is uniform in 0..1 and decides by the pools' shares. Empty when no pool takes such a start.
    """
    taking = [(pool, share) for pool in pools if (share := _share(pool, start)) > 0]
    left = draw * sum(share for _, share in taking)
    for pool, share in taking:
        left -= share
        if left < 0:
            return (pool, *_beyond(pools, pool))
    return (taking[-1][0], *_beyond(pools, taking[-1][0])) if taking else ()


def request_pools(pools: Sequence[PoolPlan], model: str, draw: float) -> tuple[PoolPlan, ...]:
    """Return the pools that a request goes through before it is known whether the cache helps. They are those of its
    own model where it names one, else by the shares of the plan; empty where the plan says nothing of it."""
    if model:
        return tuple(pool for pool in pools if pool.model == model)[:1]
    return entry_pools(pools, NOISE, draw)


def request_stages(
    pools: Sequence[PoolPlan], model: str, draw: float, cascade: Sequence[str] = ()
) -> tuple[Stage, ...]:
    """Return the stages that a request goes through before it is known whether the cache helps: those of the plan, or
    else the model that it names, or else the models of `cascade`. A pool that no plan names is called after its
    model."""
    planned = request_pools(pools, model, draw)
    if planned:
        return tuple(Stage(pool.pool, pool.model, pool.confidence_threshold) for pool in planned)
    return tuple(Stage(name, name) for name in ((model,) if model else cascade))


def start_pools(pools: Sequence[PoolPlan], start: str, draw: float, own: str) -> tuple[PoolPlan, ...]:
    """Return the pools whose lanes may take a request once its start is known. The one it waits in comes first, then
    those that take it while they are idle; `own` is the pool that admitted it. Empty where the plan knows neither."""
    entered = entry_pools(pools, start, draw)[:1] or tuple(pool for pool in pools if pool.pool == own)[:1]
    return (*entered, *spare_pools(pools, start, entered[0])) if entered else ()


def scaled_start_step(start_step: int, asked_steps: int, own_steps: int) -> int:
    """Return the step at which a model that takes `own_steps` begins from a start at `start_step` of `asked_steps`: at
    the same share of its own, and at its last one at the latest."""
    return min(round(start_step * own_steps / asked_steps), own_steps - 1)


def spare_pools(pools: Sequence[PoolPlan], start: str, entered: PoolPlan) -> tuple[PoolPlan, ...]:
    """Return the pools that may take a request which entered `entered` while they are idle; none for a request from
    noise."""
    if start == NOISE:
        return ()
    return tuple(pool for pool in pools if pool != entered and pool.worker_ids and _share(pool, SPARE) > 0)


def _share(pool: PoolPlan, route: str) -> float:
    return next((entry.share for entry in pool.routes if entry.route == route), 0.0)


def _beyond(pools: Sequence[PoolPlan], entered: PoolPlan) -> tuple[PoolPlan, ...]:
    if entered.confidence_threshold <= 0.0:
        return ()
    stages: list[PoolPlan] = []
    for pool in pools[pools.index(entered) + 1 :]:
        stages.append(pool)
        if pool.confidence_threshold <= 0.0:
            break
    return tuple(stages)
