"""Where a simulated request goes: the plan's pools, the cache's answer, the lanes that may take it."""

from collections.abc import Sequence

from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.policies.serving.entry import IMAGE, LATENT, NOISE, request_pools, start_pools
from pentimento.reports import StartKind

RETRIEVAL_POOL = "retrieval"

_ROUTE_OF = {
    StartKind.NOISE: NOISE,
    StartKind.LATENT: LATENT,
    StartKind.IMAGE: IMAGE,
    StartKind.RETRIEVAL: NOISE,
}


def arrival_pools(plan: Plan | None, model: str, draw: float, cascade: Sequence[str], default: str) -> tuple[str, ...]:
    """Pools that a request goes through in order. Where the plan says nothing of the stages: `cascade`, or the pool of
    the model asked for, of the `default` one where it names none."""
    pools = plan.pools if plan is not None else ()
    planned = tuple(pool.pool for pool in request_pools(pools, model, draw))
    if planned or model:
        return planned or (model,)
    asked = request_pools(pools, default, draw)
    return tuple(cascade) or tuple(pool.pool for pool in asked) or (default,)


def hit_pools(pools: Sequence[PoolPlan], kind: StartKind, draw: float, own: str) -> list[tuple[str, str]]:
    """(pool, model) of the lanes that may take a request of this start, the one it waits in first."""
    return [(pool.pool, pool.model) for pool in start_pools(pools, _ROUTE_OF[kind], draw, own)]
