"""Reuse of a scenario's policy: choose where a request starts, and insert its image."""

from collections.abc import Sequence
from dataclasses import replace

from lab.runs import StartKind
from lab.simulator.cache import MISS, CacheAnswer, SimulatedCache
from lab.simulator.fleet import RETRIEVAL_POOL, SimulatedFleet
from lab.simulator.ledger import SimulatedImage, SimulatedRequest
from lab.simulator.scenario import Scenario
from lab.workloads import Workload
from pentimento.dataplane import Dataplane
from pentimento.dataplane.predictions import service_s
from pentimento.dataplane.thinning import is_shorter_from_noise
from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.policies.plan.entry import (
    NO_QUOTA,
    FoundStart,
    Stage,
    StartCandidate,
    choose_start,
    start_candidates,
    start_lanes,
)
from pentimento.policies.plan.registry import CacheUse

Lane = tuple[str, str]
"""A pool, and the model that it holds."""


class Reuse:
    """The cache of the simulation; always empty for policies without one. `dataplane` gives the work per pool, and
    whether a thinned run from noise would be shorter."""

    def __init__(
        self,
        scenario: Scenario,
        workload: Workload,
        fleet: SimulatedFleet,
        dataplane: Dataplane,
        cache: SimulatedCache | None = None,
    ) -> None:
        self._use = scenario.policy.cache
        self._pixels = scenario.pixels
        self._quotas = dict(scenario.quotas)
        self._fleet = fleet
        self._dataplane = dataplane
        self._cache = cache if cache is not None else _warm_cache(scenario, workload, fleet)

    def choose(
        self, request: SimulatedRequest, own: Stage, pools: Sequence[PoolPlan]
    ) -> tuple[CacheAnswer, tuple[Lane, ...]]:
        """Choose where a request starts, and mark the entry as used. Return it with the lanes that may take it, its
        waiting lane first."""
        if self._cache is None:
            return MISS, ((own.pool, own.model),)
        arrival = request.arrival
        quota = self._quotas.get(arrival.tenant, NO_QUOTA)
        pools = [pool for pool in pools if pool.pool == own.pool or quota.allows(pool.pool)]
        if self._use is CacheUse.RETRIEVAL:
            candidates: tuple[StartCandidate, ...] = (StartCandidate(own.pool, own.model, images=True),)
        else:
            candidates = start_candidates(pools, own, request.route_draw)
        answers = [self._look_up(self._cache, request, candidate) for candidate in candidates]
        number = choose_start([self._found(one, answer) for one, answer in zip(candidates, answers, strict=True)])
        chosen, answer = candidates[number], answers[number]
        self._cache.use(arrival.tenant, chosen.model, answer)
        if answer.kind is StartKind.RETRIEVAL:
            return answer, ((RETRIEVAL_POOL, RETRIEVAL_POOL),)
        spare = start_lanes(pools, answer.kind.value, chosen)
        return answer, ((chosen.pool, chosen.model), *((pool.pool, pool.model) for pool in spare))

    def follow(self, plan: Plan) -> None:
        """Changes state: the cache goes by what that plan says of hits."""
        if self._cache is not None:
            self._cache.follow(plan)

    def remember(self, request: SimulatedRequest, painted: SimulatedImage) -> None:
        """Changes state: what the accepted attempt captured becomes findable."""
        if self._cache is None or painted.start.kind is StartKind.RETRIEVAL:
            return
        arrival, start_step = request.arrival, painted.start.start_step_of(painted.steps)
        self._cache.insert(
            arrival.tenant, painted.model, arrival.embedding_row, painted.steps, start_step, painted.start.depth
        )

    def _look_up(self, cache: SimulatedCache, request: SimulatedRequest, candidate: StartCandidate) -> CacheAnswer:
        arrival, steps = request.arrival, self._fleet.steps_of(candidate.model, request.arrival)
        answer = cache.lookup(
            arrival.tenant, candidate.model, arrival.embedding_row, steps, candidate.latents, candidate.images
        )
        if answer.kind is not StartKind.LATENT:
            return answer
        noise, steps_left = self._fleet.thinning_of(candidate.model, arrival), answer.step_count - answer.start_step
        return MISS if is_shorter_from_noise(self._dataplane.state, candidate.pool, noise, steps_left) else answer

    def _found(self, candidate: StartCandidate, answer: CacheAnswer) -> FoundStart:
        left = float((answer.step_count - answer.start_step) * self._pixels)
        share = answer.start_step / answer.step_count
        seconds = service_s(self._dataplane.state, candidate.pool, left)
        return FoundStart(answer.kind.value, share, seconds, candidate.stands_in)


def _warm_cache(scenario: Scenario, workload: Workload, fleet: SimulatedFleet) -> SimulatedCache | None:
    policy = scenario.policy
    if policy.cache is CacheUse.NONE or workload.embeddings is None:
        return None
    rules = replace(scenario.cache.rules, keeps_images_of_hits=policy.cache_hits)
    settings = replace(scenario.cache, rules=rules)
    cache = SimulatedCache(policy.cache, policy.eviction, settings, workload.embeddings)
    count = min(scenario.cache.warm_count, len(workload.embeddings))
    if count and workload.arrivals:
        tenants = sorted({arrival.tenant for arrival in workload.arrivals})
        model = scenario.default_model
        cache.warm(tenants, model, fleet.steps_of(model, workload.arrivals[0]), range(count))
    return cache
