"""Where a simulated request goes: the plan's pools, the cache's answer, the lanes that may take it."""

from collections.abc import Sequence

from pentimento.domain.fleet import PoolPlan
from pentimento.policies.serving import entry_pools
from pentimento.policies.serving.entry import IMAGE, LATENT, NOISE, spare_pools
from pentimento.reports import StartKind

RETRIEVAL_POOL = "retrieval"

_ROUTE_OF = {
    StartKind.NOISE: NOISE,
    StartKind.LATENT: LATENT,
    StartKind.IMAGE: IMAGE,
    StartKind.RETRIEVAL: NOISE,
}


def arrival_pools(pools: Sequence[PoolPlan], model: str, draw: float) -> tuple[str, ...]:
    """Pools that a request goes through in order, before it is known whether the cache helps: those of its own model
    where it names one, else those of the plan's shares; the first pool of a plan that has no shares."""
    if model:
        named = next((pool.pool for pool in pools if pool.model == model), model)
        return (named,)
    entered = entry_pools(pools, NOISE, draw)
    return tuple(pool.pool for pool in entered) or ((pools[0].pool,) if pools else ())


def hit_pools(pools: Sequence[PoolPlan], kind: StartKind, draw: float, own: str) -> list[tuple[str, str]]:
    """(pool, model) of the lanes that may take a request of this start, the one it waits in first."""
    route = _ROUTE_OF[kind]
    entered = entry_pools(pools, route, draw)
    pool = entered[0] if entered else next((pool for pool in pools if pool.pool == own), None)
    if pool is None:
        return []
    return [(pool.pool, pool.model), *((spare.pool, spare.model) for spare in spare_pools(pools, route, pool))]
