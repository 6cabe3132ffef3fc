"""Route simulated requests as the frontdoor does: stages by the plan, then the start and the lanes that may take it."""

from lab.simulator.adapters import SimulatedAdapters
from lab.simulator.fleet import RETRIEVAL_POOL, SimulatedFleet
from lab.simulator.ledger import SimulatedRequest
from lab.simulator.reuse import Reuse
from lab.simulator.scenario import Scenario
from lab.workloads import Arrival
from pentimento.dataplane import Dataplane, effects, events
from pentimento.dataplane.demand_report import CountedStart, StartCounts
from pentimento.policies.plan.entry import (
    NO_QUOTA,
    NOISE,
    allowed_stages,
    replanned_stages,
    request_stages,
    stages_from,
)

# Far beyond the end of any workload, and finite: what waits without a deadline waits till then.
NEVER_S = 1e9


class SimulatedRouting:
    """Hold the plan in force (by the dataplane), the cache and the quotas. `starts` counts where requests start."""

    def __init__(
        self,
        scenario: Scenario,
        dataplane: Dataplane,
        fleet: SimulatedFleet,
        reuse: Reuse,
        adapters: SimulatedAdapters,
        starts: StartCounts,
    ) -> None:
        self._scenario = scenario
        self._dataplane = dataplane
        self._fleet = fleet
        self._reuse = reuse
        self._adapters = adapters
        self._starts = starts
        self._quotas = dict(scenario.quotas)

    def arrived(
        self, request_id: str, arrival: Arrival, draw: float, route_draw: float
    ) -> tuple[SimulatedRequest, events.RequestArrived]:
        """Return the request of an arrival, and the event for the dataplane; `draw` and `route_draw` as in
        `SimulatedRequest`."""
        plan, scenario = self._dataplane.state.index, self._scenario
        quota = self._quotas.get(arrival.tenant, NO_QUOTA)
        stages = request_stages(plan, arrival.model, route_draw, scenario.cascade, quota)
        stages = stages or request_stages(plan, scenario.default_model, route_draw, quota=quota)
        stages = allowed_stages(stages, quota)
        cascade = tuple(stage.pool for stage in stages)
        pool = cascade[0]
        request = SimulatedRequest(request_id, arrival, draw, route_draw, stages, pool=pool)
        request.model = self._fleet.model_of(pool)
        request.steps = self._fleet.steps_of(request.model, arrival)
        deadline = NEVER_S if self._scenario.answers_late else arrival.at_s + arrival.deadline_s
        work = float(request.steps * self._scenario.pixels)
        needs, thinning = self._adapters.needs_of(arrival), self._fleet.thinning_of(request.model, arrival)
        asked = (request_id, arrival.tenant, pool, work, deadline, cascade, needs, thinning)
        arrived = events.RequestArrived(*asked, cascade_name=stages[0].cascade, planned=stages[0].planned)
        return request, arrived

    def resolved(self, request: SimulatedRequest, effect: effects.ResolveRoute) -> events.RouteResolved:
        """Return the route of a request at a stage. Changes the request, and counts its start."""
        stage, plan = effect.cascade_stage, self._dataplane.state.index
        quota, draw = self._quotas.get(request.arrival.tenant, NO_QUOTA), request.route_draw
        if effect.anew:
            request.cascade += replanned_stages(plan, draw, quota) or request.cascade[-1:]
        stage_of = request.cascade[stage]
        own = stage_of.pool
        # A request deferred to a stage runs only there.
        request.start, lanes = self._reuse.choose(request, stage_of, plan.pools if stage == 0 else ())
        request.deferred = stage > 0
        request.options = lanes
        own_steps = self._fleet.steps_of(stage_of.model, request.arrival)
        if stage == 0:
            kind, saved = request.start.kind.value, request.start.start_step_of(own_steps)
            request.cascade = allowed_stages(stages_from(plan, request.cascade, *lanes[0], kind, draw, quota), quota)
            model = lanes[0][1] if kind != NOISE else ""
            start = CountedStart(saved, kind, own_steps, model)
            self._starts.count(own, start, request.arrival.loras, request.arrival.controlnets)
        work = [float(self.steps_left(request, model) * self._scenario.pixels) for _, model in lanes]
        thinning = [self._fleet.thinning_of(model, request.arrival, request.start) for _, model in lanes]
        options = tuple(
            events.RouteOption(pool, self._fleet.digest_of(model), left, offer)
            for (pool, model), left, offer in zip(lanes[1:], work[1:], thinning[1:], strict=True)
        )
        pool, model = lanes[0]
        digest = self._fleet.digest_of(model)
        return events.RouteResolved(
            effect.request_id,
            pool,
            digest,
            work[0],
            stage,
            options,
            start=request.start.kind.value,
            cascade=tuple(one.pool for one in request.cascade) if stage == 0 or effect.anew else (),
            cascade_name=stage_of.cascade if stage else request.cascade[0].cascade,
            thinning=thinning[0],
        )

    def steps_left(self, request: SimulatedRequest, model: str) -> int:
        """Return the steps on that model: a start at k of T leaves its share of the model's own steps."""
        if model == RETRIEVAL_POOL:
            return 0
        steps = self._fleet.steps_of(model, request.arrival)
        return steps - request.start.start_step_of(steps)
