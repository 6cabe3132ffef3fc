"""Explain in sentences the route that a request would take now, without quoting the request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pentimento.dataplane.pools import Pool
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import Route
from pentimento.domain.online_quality import ReuseQuality
from pentimento.policies.earned_reuse import CLOSED
from pentimento.policies.plan.entry import NOISE, Stage
from pentimento.policies.thinning import Pressure, ThinningMode, ThinningOffer, ThinningRefusal, choose
from services.frontdoor.routing.starts import kind_of


@dataclass(frozen=True)
class ExplainedSteps:
    """Hold the reasons for a request's steps: the deployment's mode, the steps that may be skipped or the refusal, and
    the time available."""

    mode: ThinningMode
    offer: ThinningOffer
    refusal: ThinningRefusal | None
    pressure: Pressure


@dataclass(frozen=True)
class Explained:
    """Hold a route and its reasons: the plan in force, whether the request names its model, the stage that it enters,
    the notes on the cache, the pool where it would wait, the reasons for its steps, the predictions from its prompt,
    a sentence on its residuals, "" without ControlNets, and one on its deep features, "" if it reuses none anyway."""

    route: Route
    plan: Plan | None
    names_model: bool
    entered: Stage
    notes: Sequence[str]
    pool: Pool
    steps: ExplainedSteps
    foresight: Sequence[str] = ()
    residuals: str = ""
    features: str = ""


def reasons(explained: Explained) -> tuple[str, ...]:
    """Return the reasons for plan, model, start, steps, residuals, features, stages and wait, in this order."""
    return (
        *_of_plan(explained.plan),
        _of_model(explained.names_model, explained.entered, explained.route),
        *_of_start(explained.route, explained.notes),
        _of_steps(explained.steps),
        *((f"residuals: {explained.residuals}",) if explained.residuals else ()),
        *((f"features: {explained.features}",) if explained.features else ()),
        *_of_stages(explained),
        *_of_wait(explained.pool),
    )


def of_earned(rows: Sequence[ReuseQuality]) -> Iterator[str]:
    """Yield a sentence on how much of its reuse of latents a model has earned, and one of images; none for a kind that
    is not earned."""
    for from_image, kind in ((False, "latents"), (True, "images")):
        earned = [row for row in rows if row.earned and row.from_image is from_image]
        if not earned:
            continue
        allowed = [row for row in earned if row.similarity < CLOSED]
        trial_count = sum(row.trial_count for row in earned)
        told = "nothing is allowed yet"
        if allowed:
            most = max(allowed, key=lambda row: row.saved_share)
            told = f"up to {most.saved_share:.0%} of the steps from similarity {most.similarity:.3f} on"
        count = f"{len(allowed)} of {len(earned)} thresholds"
        yield f"reuse of {kind}: earned by trials, {count}: {told}; {trial_count} trials since"


def _of_plan(plan: Plan | None) -> Iterator[str]:
    if plan is None:
        yield "plan: none received yet; the frontdoor's settings apply"
        return
    yield f"plan: {plan.version.leader_epoch}.{plan.version.sequence} by {plan.allocator or 'an unnamed allocator'}"
    if plan.admission_rate < 1.0:
        yield f"plan: it admits {plan.admission_rate:.0%} of the demand"
    if thinned := [pool.pool for pool in plan.pools if pool.thins]:
        yield f"plan: it assumes skipped steps in {', '.join(thinned)}"
    yield from (f"plan: {note}" for note in plan.notes)


def _of_model(names_model: bool, entered: Stage, route: Route) -> str:
    if names_model:
        return f"model: {route.model}, which the request names"
    if route.model != entered.model:
        return f"model: {route.model}, as its pool takes requests with this start"
    return (
        f"model: {route.model}, by the plan's shares" if entered.planned else f"model: {route.model}, by the settings"
    )


def _of_start(route: Route, notes: Sequence[str]) -> Iterator[str]:
    start = kind_of(route.start)
    if start != NOISE:
        yield f"start: {start}, from the cache"
    elif not notes:
        yield "start: noise, the cache has no near entry or is not used"
    yield from (f"start: {note}" for note in notes)


def _of_steps(steps: ExplainedSteps) -> str:
    """Return the sentence on the steps that the start leaves."""
    if steps.refusal is not None:
        return f"steps: all run, {steps.refusal.reason.value}: {steps.refusal.message}"
    offer, pressure = steps.offer, steps.pressure
    least = f"{offer.least_count} of {offer.remaining_count}"
    option = choose(steps.mode, offer, pressure)
    if option is None:
        why = "the deadline allows all" if pressure.step_s else "their time is not known yet"
        return f"steps: all run, ENOUGH_TIME: {why}; {least} would be allowed"
    if steps.mode is ThinningMode.ALWAYS:
        why = "ALWAYS: by the settings"
    elif steps.mode is ThinningMode.LOAD and pressure.overloaded:
        why = "OVERLOADED: demand exceeds capacity"
    else:
        why = "DEADLINE: not enough time for all"
    return f"steps: {offer.remaining_with(option)} of {offer.remaining_count} run, {why}; {least} would be allowed"


def _of_stages(explained: Explained) -> Iterator[str]:
    yield from (f"stages: {sentence}" for sentence in explained.foresight)
    route, entered = explained.route, explained.entered.model
    models = [stage.model for stage in route.stages]
    for stage, following in pairwise(route.stages[models.index(entered) if entered in models else 0 :]):
        if not stage.discriminator:
            yield f"stages: {following.model} runs if {stage.model} would be late"
            continue
        threshold = stage.confidence_threshold
        yield f"stages: {following.model} runs unless the confidence is above {threshold:g}"


def _of_wait(pool: Pool) -> Iterator[str]:
    if pool.running_count < pool.credit_count and not pool.waiting_count:
        yield f"wait: none, {pool.credit_count - pool.running_count} of {pool.credit_count} places are free"
        return
    yield f"wait: {pool.waiting_count} requests wait for {pool.credit_count} places, {pool.running_count} of them taken"
    if pool.throughput <= 0.0 or pool.speed.slowdown is None:
        yield "wait: how fast they are done is not known yet"
