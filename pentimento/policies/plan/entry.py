"""Read from a plan the stages of a new request, so that a router needs only the plan.

A pool's `routes` give its share of the requests of each start (`noise`, `latent`, `image`), and their cascade. A pool
with the route `spare` takes hits of other pools while it is idle (MoDM's large workers). A stage of a cascade defers
images by a threshold for each kind of start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, RouteShare, StartThreshold
from pentimento.domain.generation import PlanVersion
from pentimento.domain.tenants import TenantQuota

NOISE, LATENT, IMAGE, SPARE = "noise", "latent", "image", "spare"
STARTS = (NOISE, LATENT, IMAGE)
EVERY_START = (RouteShare(NOISE, 1.0), RouteShare(LATENT, 1.0), RouteShare(IMAGE, 1.0))
# A quota that allows every pool.
NO_QUOTA = TenantQuota()


@dataclass(frozen=True, slots=True)
class Stage:
    """Describe a stage of a request: its pool, its model, and the scoring of its images if another stage follows.

    `cascade`: the plan's cascade, empty for the operator's own or none. `planned`: the plan's shares chose the stage,
    not the request's model. `reuse_share` (0..1) of the next stage's steps are skipped, since it starts from this
    stage's image. `deserted`: no worker was left, and the following stages were planned in its place. The other fields
    are those of `StagePlan`.
    """

    pool: str
    model: str
    cascade: str = ""
    discriminator: str = ""
    thresholds: tuple[StartThreshold, ...] = ()
    planned: bool = False
    reuse_share: float = 0.0
    discriminator_digest: str = ""
    deserted: bool = False

    def threshold(self, start: str) -> float | None:
        """Return the confidence that images from that start must exceed; None where they are not scored."""
        return next((entry.confidence for entry in self.thresholds if entry.start == start), None)


@dataclass(frozen=True)
class PlanIndex:
    """Look up parts of a plan by name; each table is made once. Without a plan all tables are empty."""

    plan: Plan | None = None

    @property
    def version(self) -> PlanVersion:
        """Return the plan's version, 0.0 without a plan."""
        return self.plan.version if self.plan is not None else PlanVersion()

    @property
    def pools(self) -> tuple[PoolPlan, ...]:
        """Return the plan's pools, in its order."""
        return self.plan.pools if self.plan is not None else ()

    @property
    def cascades(self) -> tuple[CascadePlan, ...]:
        """Return the plan's cascades, in its order."""
        return self.plan.cascades if self.plan is not None else ()

    @cached_property
    def routes_requests(self) -> bool:
        """Return whether the plan routes requests that name no model; else the frontdoor's settings do."""
        return any(pool.routes for pool in self.pools)

    @cached_property
    def models(self) -> Mapping[str, str]:
        """Return the model of each pool."""
        return {pool.pool: pool.model for pool in self.pools}

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Return the workers with an assignment."""
        return frozenset(one.worker_id for one in self.plan.assignments) if self.plan is not None else frozenset()

    @cached_property
    def staffed(self) -> frozenset[str]:
        """Return the pools with workers."""
        return frozenset(pool.pool for pool in self.pools if pool.worker_ids)

    @cached_property
    def unstaffed(self) -> frozenset[str]:
        """Return the pools without workers."""
        return frozenset(self.models) - self.staffed

    @cached_property
    def entered(self) -> frozenset[str]:
        """Return the pools with workers that receive requests from noise."""
        return self.staffed & {pool.pool for pool in self.pools if takes(pool, NOISE)}

    @cached_property
    def thinned(self) -> frozenset[str]:
        """Return the pools that must skip steps by the plan."""
        return frozenset(pool.pool for pool in self.pools if pool.thins)

    @cached_property
    def registered(self) -> Mapping[str, str]:
        """Return the digests of the model repository, by the model's name."""
        return {one.model: one.digest for one in self.plan.registered} if self.plan is not None else {}

    @cached_property
    def thresholds(self) -> Mapping[str, Mapping[tuple[str, str], float]]:
        """Return the confidences that images must exceed, by cascade, then by pool and start."""
        return {
            cascade.cascade: {
                (stage.pool, threshold.start): threshold.confidence
                for stage in cascade.stages
                for threshold in stage.thresholds
            }
            for cascade in self.cascades
        }

    @cached_property
    def stages(self) -> Mapping[str, tuple[Stage, ...]]:
        """Return the stages of each cascade."""
        return {
            cascade.cascade: tuple(
                Stage(model=self.models[stage.pool], cascade=cascade.cascade, planned=True, **vars(stage))
                for stage in cascade.stages
            )
            for cascade in self.cascades
        }

    def stages_at(self, entry: "EnteredPool") -> tuple[Stage, ...]:
        """Return the stages of a request that enters at `entry`."""
        alone = (Stage(entry.pool.pool, entry.pool.model, planned=True),)
        return self.stages.get(entry.cascade, alone)

    def pools_of(self, worker_id: str, model: str) -> tuple[str, ...]:
        """Return the model's pools that list the worker; the pool with the model's name if none does."""
        return tuple(p.pool for p in self.pools if p.model == model and worker_id in p.worker_ids) or (model,)


@dataclass(frozen=True, slots=True)
class EnteredPool:
    """Hold the pool where a request enters, and the cascade that it goes through from there, if any."""

    pool: PoolPlan
    cascade: str = ""


def every_start(cascade: str) -> tuple[RouteShare, ...]:
    """Return the routes of a pool that takes requests of every start, through that cascade."""
    return tuple(RouteShare(start, 1.0, cascade) for start in STARTS)


def entry_of(
    pools: Sequence[PoolPlan], start: str, draw: float, suits: Callable[[EnteredPool], bool] | None = None
) -> EnteredPool | None:
    """Return the pool where a request of this start enters, among entries that pass `suits`; None if no pool takes the
    start. `draw` is uniform in 0..1 and decides by the pools' shares."""
    taking = [
        (EnteredPool(pool, route.cascade), route.share)
        for pool in pools
        for route in pool.routes
        if route.route == start and route.share > 0
    ]
    if suits is not None:
        taking = [(entry, share) for entry, share in taking if suits(entry)]
    left = draw * sum(share for _, share in taking)
    for entry, share in taking:
        left -= share
        if left < 0:
            return entry
    return taking[-1][0] if taking else None


def request_stages(
    index: PlanIndex, model: str, draw: float, cascade: Sequence[str] = (), quota: TenantQuota = NO_QUOTA
) -> tuple[Stage, ...]:
    """Return the stages of a request before its start is known.

    They are the pool of the requested model, else the stages of the plan, else the models of `cascade`. A pool outside
    the plan has its model's name. Several pools of a model share its requests by their workers. The draw is among pools
    that `quota` allows, if there are any; `allowed_stages` removes the other stages.
    """
    if model:
        of_model = [pool for pool in index.pools if pool.model == model]
        own = _drawn([pool for pool in of_model if quota.allows(pool.pool)] or of_model, draw)
        return (Stage(own.pool if own is not None else model, model),)
    entry = _entry(index, NOISE, draw, quota)
    if entry is not None:
        return index.stages_at(entry)
    return tuple(Stage(name, name) for name in cascade)


def allowed_stages(stages: Sequence[Stage], quota: TenantQuota) -> tuple[Stage, ...]:
    """Return the stages in pools that the tenant may use; all stages if it may use none, so that admission rejects the
    first."""
    return tuple(stage for stage in stages if quota.allows(stage.pool)) or tuple(stages)


def replanned_stages(index: PlanIndex, draw: float, quota: TenantQuota) -> tuple[Stage, ...]:
    """Return the stages, by the plan in force, of a request that an earlier plan routed, in pools that its tenant may
    use."""
    return tuple(stage for stage in request_stages(index, "", draw, quota=quota) if quota.allows(stage.pool))


def _entry(index: PlanIndex, start: str, draw: float, quota: TenantQuota) -> EnteredPool | None:
    """Draw among entries with a stage that the tenant may use; among all entries if there is none."""
    if not quota.pools:
        return entry_of(index.pools, start, draw)

    def is_open(entry: EnteredPool) -> bool:
        return any(quota.allows(stage.pool) for stage in index.stages_at(entry))

    return entry_of(index.pools, start, draw, is_open) or entry_of(index.pools, start, draw)


def stages_from(
    index: PlanIndex,
    own: Sequence[Stage],
    pool: str,
    model: str,
    start: str,
    draw: float,
    quota: TenantQuota = NO_QUOTA,
) -> tuple[Stage, ...]:
    """Return the stages of a request once its start is known. It begins in `pool` with `model`.

    They are the plan's stages for such starts in that pool, else its `own` earlier stages if they begin in that pool,
    else only that pool. The draw is that of `request_stages`.
    """
    entry = _entry(index, start, draw, quota)
    if entry is not None and entry.pool.pool == pool and own[0].planned:
        return index.stages_at(entry)
    return tuple(own) if own[0].pool == pool else (Stage(pool, model),)


def _drawn(pools: Sequence[PoolPlan], draw: float) -> PoolPlan | None:
    left = draw * sum(len(pool.worker_ids) for pool in pools)
    for pool in pools:
        left -= len(pool.worker_ids)
        if left < 0:
            return pool
    return pools[0] if pools else None


@dataclass(frozen=True, slots=True)
class StartCandidate:
    """Describe a pool that may take a request, and the kinds of cached start that it accepts. `stands_in`: it takes
    images only if the planned pool cannot start from any."""

    pool: str
    model: str
    latents: bool = False
    images: bool = False
    stands_in: bool = False


def start_candidates(pools: Sequence[PoolPlan], own: Stage, draw: float) -> tuple[StartCandidate, ...]:
    """Return the candidates of one lookup, the request's own stage first. `pools` can generate its image.

    A latent belongs to its model, so the own stage may always resume one, and so may the planned pool for latents. An
    image goes to the planned pool for images, else to the own stage.
    """
    latent_pools, image_pools = _entered(pools, LATENT, draw), _entered(pools, IMAGE, draw)
    others = {pool: model for pool, model in (latent_pools | image_pools).items() if pool != own.pool}
    return (
        StartCandidate(own.pool, own.model, True, True, bool(image_pools) and own.pool not in image_pools),
        *(StartCandidate(pool, model, pool in latent_pools, pool in image_pools) for pool, model in others.items()),
    )


@dataclass(frozen=True, slots=True)
class FoundStart:
    """Describe the start that a lookup found for a candidate. `saved_share` (0..1) of its model's steps are saved;
    `seconds_left`: of the other steps there, None if unknown; `stands_in` as the candidate's."""

    kind: str
    saved_share: float = 0.0
    seconds_left: float | None = None
    stands_in: bool = False


def choose_start(found: Sequence[FoundStart]) -> int:
    """Return the index of the candidate that takes the request.

    Among candidates with a cached start the earliest to end is chosen, or, if the seconds of any are unknown, the one
    with the largest saved share; without a cached start, the first candidate. The earlier of equals is chosen.
    """
    hits = [number for number, start in enumerate(found) if start.kind != NOISE]
    hits = [number for number in hits if found[number].kind != IMAGE or not found[number].stands_in] or hits
    if not hits:
        return 0
    seconds = [found[number].seconds_left for number in hits]
    if None in seconds:
        return max(hits, key=lambda number: found[number].saved_share)
    return hits[min(range(len(hits)), key=lambda index: seconds[index] or 0.0)]


def start_lanes(pools: Sequence[PoolPlan], start: str, entered: StartCandidate) -> tuple[PoolPlan, ...]:
    """Return the other pools with the route `spare` that may take the request while they are idle: all for an image,
    pools of its model for a latent, none for noise."""
    if start == NOISE:
        return ()
    spare = [pool for pool in pools if pool.pool != entered.pool and pool.worker_ids and takes(pool, SPARE)]
    return tuple(pool for pool in spare if start != LATENT or pool.model == entered.model)


def scaled_start_step(start_step: int, asked_steps: int, own_steps: int) -> int:
    """Return the first step of a model of `own_steps` for a start at `start_step` of `asked_steps`: at the same share,
    but no later than its last step."""
    return min(round(start_step * own_steps / asked_steps), own_steps - 1)


def takes(pool: PoolPlan, route: str) -> bool:
    """Return whether requests of that route enter at the pool by the plan."""
    return any(entry.route == route and entry.share > 0 for entry in pool.routes)


def _entered(pools: Sequence[PoolPlan], start: str, draw: float) -> dict[str, str]:
    entry = entry_of(pools, start, draw)
    return {entry.pool.pool: entry.pool.model} if entry is not None else {}
