"""Explain in sentences the route that a request would take now, without quoting the request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane import Dataplane
from pentimento.dataplane.cascade import own_threshold
from pentimento.dataplane.pools import Pool
from pentimento.dataplane.predictions import predicted_wait_s
from pentimento.dataplane.thinning import foreseen_pressure
from pentimento.domain.cache import LookupCandidate, Neighbour
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Explanation, ImageRequest
from pentimento.domain.online_quality import ReuseQuality
from pentimento.policies.earned_reuse import CLOSED
from pentimento.policies.plan.entry import NOISE, Stage
from pentimento.policies.thinning import Pressure, ThinningMode, ThinningOffer, ThinningRefusal, choose
from services.frontdoor.requests.arrivals import ValidatedRequest
from services.frontdoor.requests.validation import Validation
from services.frontdoor.routing.bounded_calls import Note, bounded
from services.frontdoor.routing.foresight import Foresight, left_out_note
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.start_choice import Asker, StartChoice
from services.frontdoor.routing.starts import PoolOption, cascade_stages, kind_of, scope_of, work_left
from services.frontdoor.routing.step_rules import StepRules
from services.frontdoor.workers.catalogue import Catalogue


def reasons(
    route: Route,
    plan: Plan | None,
    names_model: bool,
    entered: Stage,
    notes: Sequence[str],
    pool: Pool,
    steps: str,
    foresight: Sequence[str] = (),
    residuals: str = "",
    features: str = "",
) -> tuple[str, ...]:
    """Return the reasons of a route for plan, model, start, steps, residuals, features, stages and wait, in this order.

    `entered`: its stage; `notes`: on the cache; `pool`: where it would wait; `foresight`: predictions from its prompt;
    `residuals`: "" without ControlNets; `features`: "" if the request reuses none anyway."""
    return (
        *_of_plan(plan),
        _of_model(names_model, entered, route),
        *_of_start(route, notes),
        f"steps: {steps}",
        *((f"residuals: {residuals}",) if residuals else ()),
        *((f"features: {features}",) if features else ()),
        *(f"stages: {sentence}" for sentence in foresight),
        *_of_stages(route, entered.model),
        *_of_wait(pool),
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


def steps_taken(mode: ThinningMode, offer: ThinningOffer, refusal: ThinningRefusal | None, pressure: Pressure) -> str:
    """Return the sentence on the steps that the start leaves. `offer`: steps that may be skipped."""
    if refusal is not None:
        return f"all run, {refusal.reason.value}: {refusal.message}"
    least = f"{offer.least_count} of {offer.remaining_count}"
    option = choose(mode, offer, pressure)
    if option is None:
        why = "the deadline allows all" if pressure.step_s else "their time is not known yet"
        return f"all run, ENOUGH_TIME: {why}; {least} would be allowed"
    if mode is ThinningMode.ALWAYS:
        why = "ALWAYS: by the settings"
    elif mode is ThinningMode.LOAD and pressure.overloaded:
        why = "OVERLOADED: demand exceeds capacity"
    else:
        why = "DEADLINE: not enough time for all"
    return f"{offer.remaining_with(option)} of {offer.remaining_count} run, {why}; {least} would be allowed"


def _of_stages(route: Route, entered: str) -> Iterator[str]:
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


# Seconds to wait for facts that only inform the client.
EXPLAIN_TIMEOUT_S = 1.0
MAX_NEIGHBOUR_COUNT = 50
# A person waits for the answer; no request does.
_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Explainer:
    """Explain routes as the `Router` would decide them now; nothing is accepted or journalled."""

    dataplane: Dataplane
    gateway: GatewayClient | None
    catalogue: Catalogue
    prompts: PromptEmbedder
    choice: StartChoice
    foresight: Foresight
    rules: StepRules
    validation: Validation

    async def explain(self, tenant: str, request: ImageRequest, neighbour_count: int = 0) -> Explanation:
        """Return what decides the route of a request, and that many of the cache's nearest entries. Raises
        InvalidArgument for too many."""
        if not 0 <= neighbour_count <= MAX_NEIGHBOUR_COUNT:
            limit = f"must be between 0 and {MAX_NEIGHBOUR_COUNT}, got {neighbour_count}"
            raise InvalidArgument.of("neighbour_count", limit)
        validated = self.validation.check(tenant, request)
        notes, foresight = list[str](), self.foresight
        resolved, stages = validated.resolved, validated.stages
        price = foresight.light_price(resolved, stages)
        left_out = foresight.why_left_out(resolved, stages, price)
        price = 1.0 if left_out else price
        scored = foresight.foresees(stages, price)
        embedding = await self.prompts.embed(tenant, resolved, notes.append, scored=scored)
        stage, told = stages[0], self.rules.light_starts.notes(stages)
        option = await self._option(tenant, validated, stage, embedding, notes.append)
        start = option.route.start
        foreseen = await foresight.foresee(stages, price, start, embedding, told.append)
        if foresight.is_left_out(stages, price, start, foreseen):
            told.append(left_out_note(stage.model, foreseen, price, left_out))
            stage = stages[1]
            option = await self._option(tenant, validated, stage, embedding, notes.append)
        elif unscored := foresight.unscored_note(stages, start, foreseen):
            told.append(unscored)
        threshold = own_threshold(self.dataplane.state, foreseen)
        route = replace(
            option.route, stages=cascade_stages(stages, kind_of(start), threshold), cascade=stages[0].cascade
        )
        option = self.rules.reusing_features(replace(option, route=route))
        explained = await self._explained(option, bool(request.model), stage, tuple(dict.fromkeys(notes)), told)
        return replace(explained, neighbours=await self._neighbours(tenant, option, embedding, neighbour_count))

    async def _option(
        self, tenant: str, validated: ValidatedRequest, stage: Stage, embedding: PromptEmbedding | None, note: Note
    ) -> PoolOption:
        """Return the first pool option of a request at that stage."""
        resolved, held = validated.resolved, self.catalogue.find(stage.model)
        stays, last = stage is not validated.stages[0], validated.stages[-1]
        asker = Asker(tenant, resolved, stage, validated.draw, last.model, stays)
        noise_s = self.choice.noise_s(resolved, last)
        if (why := self.choice.worth.why_left_out(tenant, noise_s)) and resolved.cacheable:
            note(why)
        option, *_ = await self.choice.choose(asker, held, embedding, note)
        return option

    async def _explained(
        self, option: PoolOption, names_model: bool, entered: Stage, notes: Sequence[str], told: Sequence[str]
    ) -> Explanation:
        state, route = self.dataplane.state, option.route
        plan, pool = state.plan, state.pools.get(option.pool) or Pool(option.pool)
        steps = self._steps(option, pool)
        residuals = self.rules.pipelining.why(option.resolved.spec, route)
        features = self.rules.features.why(option.resolved, route, compared=option.trial is not None)
        why = reasons(route, plan, names_model, entered, notes, pool, steps, told, residuals, features)
        thresholds = await self._reuse_quality(route.model_digest)
        return Explanation(
            route,
            route.plan_version,
            option.pool,
            predicted_wait_s(state, option.pool) * 1000,
            thresholds,
            plan.allocator if plan is not None else "",
            plan.admission_rate if plan is not None else 1.0,
            pool.waiting_count,
            (*why, *of_earned(thresholds)),
        )

    def _steps(self, option: PoolOption, pool: Pool) -> str:
        """Return the sentence on its steps, by the facts that `generate` would pass to the dataplane."""
        rule, resolved, offer = self.rules.thinning, option.resolved, self.rules.thinning_of(option)
        work = offer.reused_share * work_left(resolved, option.route.start)
        count = max(offer.remaining_cost, 1.0)
        pressure = foreseen_pressure(self.dataplane.state, pool, work, count, resolved.deadline_ms / 1000)
        return steps_taken(rule.mode, offer, rule.refusal(resolved, option.route), pressure)

    async def _reuse_quality(self, model_digest: str) -> tuple[ReuseQuality, ...]:
        if self.gateway is None:
            return ()
        return await bounded("quality", EXPLAIN_TIMEOUT_S, self.gateway.reuse_quality(model_digest)) or ()

    async def _neighbours(
        self, tenant: str, option: PoolOption, embedding: PromptEmbedding | None, count: int
    ) -> tuple[Neighbour, ...]:
        """Return up to `count` nearest entries by prompt, and up to `count` by image, that the option's model could
        use.

        Return none if the cache is unavailable or the request does not use it.
        """
        if not count or self.gateway is None or embedding is None or not option.resolved.cacheable:
            return ()
        wanted = LookupCandidate(scope_of(tenant, option.resolved, option.held, option.route))
        call = self.gateway.neighbours(wanted, embedding.text, count, _TIMEOUT_S, embedding.image)
        return await bounded("gateway", _TIMEOUT_S, call, loses="neighbours") or ()
