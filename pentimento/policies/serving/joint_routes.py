"""From profiles, f(t) and qualities to the components and routes of the joint problem."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.fleet import Capability, Replica
from pentimento.domain.models import Handover
from pentimento.policies.allocation import AllocationContext, AllocationProfile
from pentimento.policies.serving.costs import BatchCost, scoring_s
from pentimento.policies.serving.entry import IMAGE, LATENT, NOISE
from pentimento.policies.serving.joint_demand import ROOMS, JointDemand, refines, starts_from_images
from pentimento.policies.serving.joint_problem import Component, PaintingRoute, Use
from pentimento.policies.serving.settings import DeferralCurve, ModelQuality, ServingSettings

_THRESHOLD_COUNT = 11
# Of the heavy model's work: where less may be left out, plans do not count on it.
_LEAST_SPARE = 0.02


@dataclass(frozen=True)
class PlannedRoute:
    """A route of the joint problem, and what a plan must say of it: the model that it begins with; the model that it
    may be sent on to, from which confidence on it is not and what is registered of that, where it is a cascade; the
    share (0..1) of the heavy model's work that is left out, where as many steps are as may be."""

    route: PaintingRoute
    first: str
    heavy: str = ""
    threshold: float = 0.0
    handover: Handover | None = None
    left_out: float = 0.0


def kind_of(worker: Replica) -> str:
    """Return the kind of device: what it is and which models it can hold."""
    return "|".join((worker.device, *sorted(worker.models)))


def kinds_of(context: AllocationContext) -> dict[str, list[Replica]]:
    """Return the workers by kind, both in order."""
    kinds: dict[str, list[Replica]] = {}
    for worker in context.workers():
        kinds.setdefault(kind_of(worker), []).append(worker)
    return kinds


def components_of(
    context: AllocationContext, settings: ServingSettings, kinds: Mapping[str, Sequence[Replica]]
) -> tuple[list[Component], list[str]]:
    """Return the models that can be planned with, and why others cannot be, for people."""
    components, notes = [], []
    scored_s = scoring_s(context, settings.discriminator_s, [settings.discriminator])
    for model in dict.fromkeys(name for name in (settings.heavy, settings.light, *settings.small_models) if name):
        costs: dict[str, tuple[BatchCost, ...]] = {}
        profiled: list[AllocationProfile] = []
        for kind, workers in kinds.items():
            own, why = _profiles(context, model, workers)
            if own:
                sizes = [profile for profile in own if profile.batch_size in settings.batch_sizes] or own[:1]
                joins = all(Capability.STEP_BATCHING in worker.capabilities for worker in workers)
                costs[kind] = tuple(_cost(profile, joins) for profile in sizes)
                profiled += own
            elif why:
                notes.append(f"{model} is not planned on {workers[0].device or 'its devices'}: {why}")
        if costs:
            wait_s = max(profile.finish_s for profile in profiled)
            wait_s += scored_s if model == settings.light else 0.0
            load_s = max(profile.load_s for profile in profiled)
            components.append(Component(model, costs, load_s, wait_s))
    return components, notes


def _cost(profile: AllocationProfile, joins: bool) -> BatchCost:
    """A request waits for one batch before its own: q(b) = e(b). Where it `joins` at any step it waits for a place: one
    of `batch_size` falls free in e(b), at most one a step, and on average half of that is still to come."""
    share = 0.5 / min(profile.batch_size, max(profile.step_count, 1)) if joins else 1.0
    return BatchCost(profile.batch_size, profile.latency_s, share * profile.latency_s)


def _profiles(
    context: AllocationContext, model: str, workers: Sequence[Replica]
) -> tuple[list[AllocationProfile], str]:
    """Of a model on workers of one kind, by batch size; or why there are none, nothing where they never held it."""
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
    context: AllocationContext,
    settings: ServingSettings,
    components: Sequence[Component],
    demand: JointDemand,
) -> list[PlannedRoute]:
    """Return every way in which these components can paint, for each kind of start."""
    there = {component.name for component in components}
    image_left = _left(context, settings.heavy, demand.image_saved)
    refined = refines(context, settings, demand.image_saved)
    hits = 0.0 if refined else demand.image_share
    left = {
        # Where nobody but the heavy model can start from images, they are hits wherever it paints.
        NOISE: 1.0 - hits * (1.0 - image_left),
        LATENT: _left(context, settings.heavy, demand.latent_saved),
    }
    # Whoever is sent on starts from the light picture, but for those hits: nothing was measured of them.
    sent_on_left = hits * image_left + (1.0 - hits) * _left(context, settings.heavy, settings.reuse_share)
    curve = settings.deferral.bent(demand.bend)
    heavy, smalls = settings.heavy, [name for name in settings.small_models if name in there]
    found = []
    if heavy in there:
        found += [_alone(settings, heavy, start, left[start]) for start in (NOISE, LATENT)]
        found += [_alone(settings, heavy, IMAGE, image_left)] if refined or settings.light not in there else []
    if settings.light in there:
        found.append(_alone(settings, settings.light, NOISE, 1.0))
        found += _cascades(settings, curve, sent_on_left) if heavy in there else ()
    if not refined and settings.light in there:
        # Such requests go as if they had come from noise.
        found.append(_alone(settings, settings.light, IMAGE, 1.0))
    if heavy in there:
        found += [_alone(settings, small, NOISE, 1.0) for small in smalls if small != settings.light]
    for small in smalls:
        if not starts_from_images(context, settings, small, demand.image_saved):
            continue
        found.append(_alone(settings, small, IMAGE, _left(context, small, demand.image_saved)))
    if heavy not in there:
        found += [_alone(settings, small, start, 1.0) for small in smalls[:1] for start in (NOISE, LATENT)]
    found += list(_thinned(settings, found, demand.spare_share * (1.0 - hits), demand.lost_share))
    quickest = quickest_routes(components, [planned.route for planned in found]).get(NOISE)
    if heavy in there and quickest is not None and (model := quickest.uses[0].component) != heavy:
        found += [PlannedRoute(replace(quickest, name=f"{room}:{model}", start=room), model) for room in ROOMS]
    return found


def _thinned(
    settings: ServingSettings, routes: Sequence[PlannedRoute], spare: float, lost: float
) -> Iterator[PlannedRoute]:
    """The ways in which the heavy model paints from noise, once more with as many steps left out as may be: the share
    `spare` of its work, and `lost` of the quality of what it paints. Who may leave out none is in time, too, so that
    the latency stays."""
    if spare <= _LEAST_SPARE:
        return
    for planned in routes:
        *before, last = planned.route.uses
        reuses = planned.handover is not None and planned.handover.reuse_share > 0.0
        from_noise = not reuses if before else planned.route.start == NOISE
        if last.component == settings.heavy and from_noise:
            uses = (*before, replace(last, work=last.work * (1.0 - spare)))
            less = settings.quality_of(settings.heavy).quality * lost * min(1.0, last.work)
            quality = max(0.0, planned.route.quality - less)
            route = replace(planned.route, name=f"{planned.route.name} thinned", uses=uses, quality=quality)
            yield replace(planned, route=route, left_out=spare)


def quickest_routes(components: Sequence[Component], routes: Iterable[PaintingRoute]) -> dict[str, PaintingRoute]:
    """Return the way of each start, by one model, that takes the least of a device's time."""
    most = {
        one.name: max((cost.throughput for costs in one.costs.values() for cost in costs), default=0.0)
        for one in components
    }
    found: dict[str, tuple[float, PaintingRoute]] = {}
    for route in routes:
        if len(route.uses) == 1 and most[route.uses[0].component] > 0.0:
            seconds = route.uses[0].work / most[route.uses[0].component]
            found[route.start] = min((seconds, route), found.get(route.start, (seconds, route)), key=lambda one: one[0])
    return {start: route for start, (_, route) in found.items()}


def _left(context: AllocationContext, model: str, saved: float) -> float:
    """The share of a whole run that a hit is, from the profile: what is done once a request is not saved."""
    profile = next((one for one in context.profiles if one.model == model), None)
    return profile.seconds_left(saved) / profile.latency_s if profile is not None else 1.0 - saved


def _alone(settings: ServingSettings, model: str, start: str, share: float) -> PlannedRoute:
    known = settings.quality_of(model)
    quality = known.quality * (known.reuse if start != NOISE else 1.0)
    route = PaintingRoute(f"{start}:{model}", start, (Use(model, share, share),), quality)
    return PlannedRoute(route, model)


def _cascades(settings: ServingSettings, curve: DeferralCurve, heavy_left: float) -> Iterator[PlannedRoute]:
    """Yield a cascade from noise for each of some thresholds: at 0 no image is deferred, and where all are deferred the
    heavy model alone does as well. A deferred request takes `heavy_left` of a whole run of the heavy model.

    Hits have none: discriminators were measured on images from noise, and a deferred hit starts from the cache again.
    """
    light, own, heavy = settings.light, settings.quality_of(settings.light), settings.quality_of(settings.heavy)
    for number in range(1, _THRESHOLD_COUNT - 1):
        deferred = number / (_THRESHOLD_COUNT - 1)
        threshold = min(curve.confidence(deferred), 1.0)
        quality = _cascade_quality(own, heavy, deferred)
        uses = (Use(light, 1.0, 1.0), Use(settings.heavy, deferred * heavy_left))
        route = PaintingRoute(f"{NOISE}:{light}>{settings.heavy}@{number}", NOISE, uses, quality)
        if threshold > 0.0:
            yield PlannedRoute(route, light, settings.heavy, threshold, settings.handover)


def _cascade_quality(light: ModelQuality, heavy: ModelQuality, deferred: float) -> float:
    """The light pictures that stay are the most confident ones, the better the fewer they are."""
    stays = light.quality + light.spread * deferred / 2.0
    return (1.0 - deferred) * stays + deferred * heavy.quality
