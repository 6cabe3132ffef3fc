"""List the components and routes of the allocation problem: from profiles, f(t), qualities and the backlog.

A backlog is the requests that wait for longer than the SLO allows. Averages of arrivals do not contain them: if the
devices of a plan carry just the arrivals, these and all later requests wait as long as the plan is in force.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pentimento.domain.fleet import Capability, Replica
from pentimento.policies.plan.costs import BatchCost, LoadSeconds, scoring_s
from pentimento.policies.plan.demand import demand_of
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE
from pentimento.policies.plan.inputs import AllocationProfile, PlanInput
from pentimento.policies.plan.joint.forecast import ROOMS, DemandForecast, refines, starts_from_images
from pentimento.policies.plan.joint.problem import (
    AllocationProblem,
    AllocationSolution,
    Component,
    Course,
    PlannedRoute,
    Use,
)
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings

_THRESHOLD_COUNT = 11
# Share of the heavy model's work; plans do not rely on skipping a smaller share.
_LEAST_SPARE = 0.02
# Worth of a request a second of the backlog: as much as quality can be, and less than any arrival.
BACKLOG_WORTH = 1.0
_BACKLOG = "backlog of "
# Requests may wait for this share of the time that the SLO leaves after a run.
MAY_WAIT = 0.5


def kind_of(worker: Replica) -> str:
    """Return the kind of device: its type and the models that it can hold."""
    return "|".join((worker.device, *sorted(worker.models)))


def kinds_of(context: PlanInput) -> dict[str, list[Replica]]:
    """Return the workers by kind, both in order."""
    kinds: dict[str, list[Replica]] = {}
    for worker in context.workers():
        kinds.setdefault(kind_of(worker), []).append(worker)
    return kinds


def components_of(
    context: PlanInput, settings: ServingSettings, kinds: Mapping[str, Sequence[Replica]]
) -> tuple[list[Component], list[str]]:
    """Return the models that can be planned, and notes for people about the other models."""
    components, notes = [], []
    loads, planned = LoadSeconds(context), context.planned_models()
    scored_s = scoring_s(context, settings.discriminator_s, [settings.discriminator])
    for model in dict.fromkeys(name for name in (settings.heavy, settings.light, *settings.small_models) if name):
        costs: dict[str, tuple[BatchCost, ...]] = {}
        profiled: list[AllocationProfile] = []
        means_s: list[float] = []
        loads_s: dict[str, list[float]] = {}
        for kind, workers in kinds.items():
            own, why = _profiles(context, model, workers)
            if own:
                sizes = [profile for profile in own if profile.batch_size in settings.batch_sizes] or own[:1]
                joins = all(Capability.STEP_BATCHING in worker.capabilities for worker in workers)
                costs[kind] = tuple(_cost(profile, joins) for profile in sizes)
                profiled += own
                means_s.append(fmean(loads.of(worker, model) for worker in workers))
                others = (one for one in workers if planned.get(one.instance_id) != model)
                loads_s[kind] = sorted(loads.of(worker, model) for worker in others)
            elif why:
                notes.append(f"{model} is not planned on {workers[0].device or 'its devices'}: {why}")
        if costs:
            wait_s = max(profile.finish_s for profile in profiled)
            wait_s += scored_s if model == settings.light else 0.0
            components.append(Component(model, costs, max(means_s), wait_s, loads_s))
    return components, notes


def _cost(profile: AllocationProfile, joins: bool) -> BatchCost:
    """Return the cost with its wait: one batch before its own, q(b) = e(b).

    A request that `joins` at any step waits for a batch slot: each of the `batch_size` slots becomes free once in e(b),
    at most one a step, and half of the interval between two slots remains on average.
    """
    share = 0.5 / min(profile.batch_size, max(profile.step_count, 1)) if joins else 1.0
    return BatchCost(profile.batch_size, profile.latency_s, share * profile.latency_s)


def _profiles(context: PlanInput, model: str, workers: Sequence[Replica]) -> tuple[list[AllocationProfile], str]:
    """Return a model's profiles on workers of one kind by batch size, or none and the reason, which is empty if the
    workers cannot hold the model."""
    worker = workers[0]
    if model not in worker.models:
        return [], ""
    found = {
        profile.batch_size: profile
        for profile in sorted(context.profiles, key=lambda profile: profile.latency_s)
        if profile.model == model and profile.device in ("", worker.device)
    }
    if not found:
        return [], "it has no profile there"
    memory = min(other.device_memory_bytes for other in workers)
    if memory and any(profile.memory_bytes > memory for profile in found.values()):
        return [], f"it does not fit into {memory} bytes"
    return [found[size] for size in sorted(found)], ""


def routes_of(
    context: PlanInput,
    settings: ServingSettings,
    components: Sequence[Component],
    demand: DemandForecast,
) -> list[PlannedRoute]:
    """Return all routes that these components allow, for each kind of start."""
    ways = _Ways(context, settings, frozenset(component.name for component in components), demand)
    named = {route.name: route for route in (*ways.by_heavy(), *ways.by_light(), *ways.by_small())}
    found = list(named.values())
    found += list(_thinned(settings, found, demand.spare_share * (1.0 - ways.hits), demand.lost_share))
    return [*found, *_rooms(settings, components, found)]


@dataclass(frozen=True)
class _Ways:
    """List the routes by each kind of model; `there` are the models that can be planned."""

    context: PlanInput
    settings: ServingSettings
    there: frozenset[str]
    demand: DemandForecast

    @property
    def has_heavy(self) -> bool:
        return self.settings.heavy in self.there

    @property
    def refined(self) -> bool:
        """Return whether a small model can start from the images of the cache."""
        return refines(self.context, self.settings, self.demand.image_saved)

    @property
    def hits(self) -> float:
        """Return the share of hits that are planned as if from noise: only the heavy model can start from them."""
        return 0.0 if self.refined else self.demand.image_share

    @property
    def image_left(self) -> float:
        return self._left(self.settings.heavy, self.demand.image_saved)

    def by_heavy(self) -> Iterator[PlannedRoute]:
        """Yield the routes of only the heavy model."""
        settings = self.settings
        if not self.has_heavy:
            return
        # If only the heavy model can start from images, they are hits on each of its routes.
        yield _alone(settings, settings.heavy, NOISE, 1.0 - self.hits * (1.0 - self.image_left))
        yield _alone(settings, settings.heavy, LATENT, self._left(settings.heavy, self.demand.latent_saved))
        if self.refined or settings.light not in self.there:
            yield _alone(settings, settings.heavy, IMAGE, self.image_left)

    def by_light(self) -> Iterator[PlannedRoute]:
        """Yield the routes that begin with the light model."""
        settings = self.settings
        if settings.light not in self.there:
            return
        yield _alone(settings, settings.light, NOISE, 1.0)
        if self.has_heavy:
            # A deferred request starts from the light image; reuse was not measured for hits of images.
            reused = (1.0 - self.hits) * self._left(settings.heavy, settings.reuse_share)
            yield from _cascades(settings, self.demand.curve.followed, self.hits * self.image_left + reused)
        if not self.refined:
            # Such hits are generated as if from noise.
            yield _alone(settings, settings.light, IMAGE, 1.0)

    def by_small(self) -> Iterator[PlannedRoute]:
        """Yield the routes of the small models, best first."""
        settings, saved = self.settings, self.demand.image_saved
        smalls = [name for name in settings.small_models if name in self.there]
        if self.has_heavy:
            yield from (_alone(settings, small, NOISE, 1.0) for small in smalls if small != settings.light)
        for small in smalls:
            if starts_from_images(self.context, settings, small, saved):
                yield _alone(settings, small, IMAGE, self._left(small, saved))
        if not self.has_heavy:
            yield from (_alone(settings, small, start, 1.0) for small in smalls[:1] for start in (NOISE, LATENT))

    def _left(self, model: str, saved: float) -> float:
        """Return the share of a whole run that a hit takes, by the profile: its fixed part is not saved."""
        profile = next((one for one in self.context.profiles if one.model == model), None)
        return profile.seconds_left(saved) / profile.latency_s if profile is not None else 1.0 - saved


def _alone(settings: ServingSettings, model: str, start: str, share: float) -> PlannedRoute:
    known = settings.quality_of(model)
    quality = known.quality * (known.reuse if start != NOISE else 1.0)
    return PlannedRoute(f"{start}:{model}", start, (Use(model, share, share),), quality)


def _cascades(settings: ServingSettings, curve: DeferralCurve, heavy_left: float) -> Iterator[PlannedRoute]:
    """Yield a cascade from noise for each of several deferral rates between 0 and 1; at either end one model does as
    well. A deferred request takes `heavy_left` of a whole run of the heavy model.

    Hits have none: discriminators were measured on images from noise, and a deferred hit starts from the cache again.
    """
    light, own, heavy = settings.light, settings.quality_of(settings.light), settings.quality_of(settings.heavy)
    for number in range(1, _THRESHOLD_COUNT - 1):
        deferred = number / (_THRESHOLD_COUNT - 1)
        threshold = min(curve.confidence(deferred), 1.0)
        # The kept light images are the most confident ones: the fewer, the better they are.
        quality = (1.0 - deferred) * (own.quality + own.spread * deferred / 2.0) + deferred * heavy.quality
        uses = (Use(light, 1.0, 1.0), Use(settings.heavy, deferred * heavy_left))
        if threshold > 0.0:
            name = f"{NOISE}:{light}>{settings.heavy}@{number}"
            yield PlannedRoute(name, NOISE, uses, quality, threshold, settings.handover)


def _thinned(
    settings: ServingSettings, routes: Sequence[PlannedRoute], spare: float, lost: float
) -> Iterator[PlannedRoute]:
    """Yield the heavy model's routes from noise again, with all allowed steps skipped: they save the share `spare` of
    its work, and lose `lost` of its quality. The latency stays, for requests that may not skip a step."""
    if spare <= _LEAST_SPARE:
        return
    for route in routes:
        *before, last = route.uses
        reuses = route.handover is not None and route.handover.reuse_share > 0.0
        from_noise = not reuses if before else route.start == NOISE
        if last.component == settings.heavy and from_noise:
            uses = (*before, replace(last, work=last.work * (1.0 - spare)))
            less = settings.quality_of(settings.heavy).quality * lost * min(1.0, last.work)
            quality = max(0.0, route.quality - less)
            yield replace(route, name=f"{route.name} thinned", uses=uses, quality=quality, left_out=spare)


def _rooms(
    settings: ServingSettings, components: Sequence[Component], routes: Sequence[PlannedRoute]
) -> list[PlannedRoute]:
    """Return the routes of requests that may arrive before the next plan: by the quickest model, unless it is the heavy
    one."""
    quickest = quickest_routes(components, routes).get(NOISE)
    has_heavy = any(component.name == settings.heavy for component in components)
    if not has_heavy or quickest is None or (model := quickest.uses[0].component) == settings.heavy:
        return []
    return [replace(quickest, name=f"{room}:{model}", start=room) for room in ROOMS]


def quickest_routes(components: Sequence[Component], routes: Iterable[PlannedRoute]) -> dict[str, PlannedRoute]:
    """Return, for each start, the route of one model that takes the least device time."""
    most = {
        one.name: max((cost.throughput for costs in one.costs.values() for cost in costs), default=0.0)
        for one in components
    }
    found: dict[str, tuple[float, PlannedRoute]] = {}
    for route in routes:
        if len(route.uses) == 1 and most[route.uses[0].component] > 0.0:
            seconds = route.uses[0].work / most[route.uses[0].component]
            found[route.start] = min((seconds, route), found.get(route.start, (seconds, route)), key=lambda one: one[0])
    return {start: route for start, (_, route) in found.items()}


def backlogs(context: PlanInput, components: Iterable[Component], slo_s: float) -> dict[str, float]:
    """Return the number of requests that wait too long for each component, without zeros.

    Devices begin the other requests within half of the time that the SLO leaves after a run. A request counts if it
    waits both now and on average since the last planning round.
    """
    kinds = {worker.instance_id: kind_of(worker) for worker in context.workers()}
    found = {}
    for component in components:
        asked = demand_of(context, component.name)
        mean = asked.mean_queue_length
        waiting = asked.queue_length if mean is None else min(mean, asked.queue_length)
        if (beyond := waiting - _begun_in_time(context, kinds, component, slo_s)) > 0.0:
            found[component.name] = beyond
    return found


def with_backlogs(problem: AllocationProblem, waiting: Mapping[str, float]) -> AllocationProblem:
    """Return the problem with `waiting` requests of each component to serve within its horizon."""
    if not waiting:
        return problem
    rates = {f"{_BACKLOG}{component}": count / problem.horizon_s for component, count in waiting.items()}
    # A whole run of the component, named as its start.
    routes = [PlannedRoute(name, name, (Use(one, 1.0),), 0.0) for name, one in zip(rates, waiting, strict=True)]
    return replace(
        problem,
        demand={**problem.demand, **rates},
        routes=[*problem.routes, *routes],
        rooms={**problem.rooms, **dict.fromkeys(rates, BACKLOG_WORTH)},
    )


def beside_others(solution: AllocationSolution) -> AllocationSolution:
    """Return the solution with the backlog in the batches of other requests of its model, if any.

    The backlog already waits in their pool; devices in batches of another size would belong to another pool.
    """
    late = [course for course in solution.rates if course.route.startswith(_BACKLOG)]
    used = {pool for course in solution.rates if course not in late for pool in course.pools}
    units, rates = dict(solution.units), dict(solution.rates)
    for course in late:
        (alone,) = course.pools
        others = [pool for pool in used if (pool.component, pool.kind) == (alone.component, alone.kind)]
        if alone not in used and others:
            beside = max(others, key=lambda pool: (units.get(pool, 0), pool))
            units[beside] = units.get(beside, 0) + units.pop(alone, 0)
            moved = Course(course.route, (beside,))
            rates[moved] = rates.get(moved, 0.0) + rates.pop(course)
    return replace(solution, units=units, rates=rates)


def _begun_in_time(context: PlanInput, kinds: Mapping[str, str], component: Component, slo_s: float) -> float:
    """Return the number of requests that devices of the plan in force begin in time."""
    costs = [
        next((cost for cost in of_kind if cost.batch_size == one.max_batch_size), of_kind[0])
        for one in context.last.plan.assignments
        if one.model == component.name and (of_kind := component.costs.get(kinds.get(one.worker_id, "")))
    ]
    longest_s = max((cost.latency_s for cost in costs), default=0.0)
    return MAY_WAIT * max(slo_s - longest_s, 0.0) * sum(cost.throughput for cost in costs)
