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


@dataclass(frozen=True, slots=True)
class StartCandidate:
    """A pool that may take a request, and the kinds of start from the cache that it would take there. `stands_in`: it
    takes images only where the pool that the plan sends them to cannot start from any."""

    pool: str
    model: str
    latents: bool = False
    images: bool = False
    stands_in: bool = False


def start_candidates(pools: Sequence[PoolPlan], own: Stage, draw: float) -> tuple[StartCandidate, ...]:
    """Return the candidates of one lookup, the request's own stage first. `pools` are those that can paint it.

    A latent belongs to its model, so the own stage may always resume one, and so may the pool that the plan sends
    latents to. An image goes to the pool that the plan sends images to, else to the own stage.
    """
    latent_pools = {pool.pool: pool.model for pool in entry_pools(pools, LATENT, draw)[:1]}
    image_pools = {pool.pool: pool.model for pool in entry_pools(pools, IMAGE, draw)[:1]}
    others = {pool: model for pool, model in (latent_pools | image_pools).items() if pool != own.pool}
    return (
        StartCandidate(own.pool, own.model, True, True, bool(image_pools) and own.pool not in image_pools),
        *(StartCandidate(pool, model, pool in latent_pools, pool in image_pools) for pool, model in others.items()),
    )


@dataclass(frozen=True, slots=True)
class FoundStart:
    """What a lookup found for a candidate. `saved_share` (0..1) of its model's steps would be left out; `seconds_left`
    is what the rest takes there, None where that is not known; `stands_in` as the candidate's."""

    kind: str
    saved_share: float = 0.0
    seconds_left: float | None = None
    stands_in: bool = False


def choose_start(found: Sequence[FoundStart]) -> int:
    """Return the number of the candidate that the request goes to: of those with a start from the cache the one that
    is done first, or saves the largest share of its steps where the seconds of one of them are not known; the first
    candidate where none has a start. The earlier of equals is chosen."""
    hits = [number for number, start in enumerate(found) if start.kind != NOISE]
    hits = [number for number in hits if found[number].kind != IMAGE or not found[number].stands_in] or hits
    if not hits:
        return 0
    seconds = [found[number].seconds_left for number in hits]
    if None in seconds:
        return max(hits, key=lambda number: found[number].saved_share)
    return hits[min(range(len(hits)), key=lambda index: seconds[index] or 0.0)]


def start_lanes(pools: Sequence[PoolPlan], start: str, entered: StartCandidate) -> tuple[PoolPlan, ...]:
    """Return the pools beside `entered` that may take the request while they are idle: for an image any with the route
    `spare`, for a latent those of its own model, for noise none."""
    if start == NOISE:
        return ()
    spare = [pool for pool in pools if pool.pool != entered.pool and pool.worker_ids and _share(pool, SPARE) > 0]
    return tuple(pool for pool in spare if start != LATENT or pool.model == entered.model)


def scaled_start_step(start_step: int, asked_steps: int, own_steps: int) -> int:
    """Return the step at which a model that takes `own_steps` begins from a start at `start_step` of `asked_steps`: at
    the same share of its own, and at its last one at the latest."""
    return min(round(start_step * own_steps / asked_steps), own_steps - 1)


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
