"""What a scenario's policy reuses: where a request starts, and what stays of its picture."""

from pentimento.policies.serving import CacheUse
from pentimento.reports import StartKind
from pentimento.simulator.cache import MISS, CacheAnswer, SimulatedCache
from pentimento.simulator.fleet import SimulatedFleet
from pentimento.simulator.ledger import SimulatedPicture, SimulatedRequest
from pentimento.simulator.scenario import Scenario
from pentimento.workloads import Workload


class Reuse:
    """The cache as the simulation asks it; one that is always empty for policies without."""

    def __init__(self, scenario: Scenario, workload: Workload, fleet: SimulatedFleet) -> None:
        self._policy = scenario.policy
        self._fleet = fleet
        self._cache = _warm_cache(scenario, workload, fleet)

    def look_up(self, request: SimulatedRequest, pool: str) -> CacheAnswer:
        """Changes state: what serves is used."""
        if self._cache is None:
            return MISS
        model = self._fleet.model_of(pool)
        steps = self._fleet.steps_of(model, request.arrival)
        return self._cache.lookup(request.arrival.tenant, model, request.arrival.embedding_row, steps)

    def remember(self, request: SimulatedRequest, painted: SimulatedPicture) -> None:
        """Changes state: what the accepted attempt captured becomes findable."""
        hit = painted.start.kind is not StartKind.NOISE
        if self._cache is None or painted.start.kind is StartKind.RETRIEVAL:
            return
        if hit and not self._policy.cache_hits:
            return
        arrival = request.arrival
        begun_at = painted.start.start_step if painted.start.kind is StartKind.LATENT else 0
        self._cache.insert(
            arrival.tenant, painted.model, arrival.embedding_row, painted.steps, begun_at, painted.start.depth
        )


def _warm_cache(scenario: Scenario, workload: Workload, fleet: SimulatedFleet) -> SimulatedCache | None:
    policy = scenario.policy
    if policy.cache is CacheUse.NONE or workload.embeddings is None:
        return None
    cache = SimulatedCache(policy.cache, policy.eviction, scenario.cache, workload.embeddings)
    count = min(scenario.cache.warm_count, len(workload.embeddings))
    if count and workload.arrivals:
        tenants = sorted({arrival.tenant for arrival in workload.arrivals})
        model = scenario.default_model
        cache.warm(tenants, model, fleet.steps_of(model, workload.arrivals[0]), range(count))
    return cache
