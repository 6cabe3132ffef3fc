"""Explain the route that a request would take now."""

from collections.abc import Sequence
from dataclasses import replace

from pentimento.dataplane.cascade import own_threshold
from pentimento.dataplane.pools import Pool
from pentimento.dataplane.predictions import predicted_wait_s
from pentimento.dataplane.thinning import foreseen_pressure
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.image_request import Explanation
from pentimento.domain.online_quality import ReuseQuality
from pentimento.policies.plan.entry import Stage
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.arrivals import ValidatedRequest
from services.frontdoor.routing.bounded_calls import Note, bounded
from services.frontdoor.routing.explaining import Explained, ExplainedSteps, of_earned, reasons
from services.frontdoor.routing.foresight import (
    foresee,
    foresees,
    is_left_out,
    left_out_note,
    light_price,
    noise_seconds,
    unscored_note,
    why_left_out,
)
from services.frontdoor.routing.routes import embed
from services.frontdoor.routing.stages import PoolOption, cascade_stages
from services.frontdoor.routing.start_choice import Asker, decide_route
from services.frontdoor.routing.starts import kind_of, reused_share, work_left

# Seconds to wait for facts that only inform the client.
EXPLAIN_TIMEOUT_S = 1.0


async def explanation(
    parts: FrontdoorParts, tenant: str, validated: ValidatedRequest, *, names_model: bool
) -> tuple[Explanation, PoolOption, PromptEmbedding | None]:
    """Return what decides the route of a request, the chosen option, and its prompt's embedding; nothing is accepted or
    journalled. `names_model`: the client named the model."""
    notes = list[str]()
    price = light_price(parts, validated.resolved, validated.stages)
    left_out = why_left_out(parts, validated.resolved, validated.stages, price)
    price = 1.0 if left_out else price
    scored = foresees(parts, validated.stages, price)
    embedding = await embed(parts, tenant, validated.resolved, notes.append, scored=scored)
    stage, told = validated.stages[0], parts.light_starts.notes(validated.stages, parts.catalogue)
    option = await _option(parts, tenant, validated, stage, embedding, notes.append)
    start = option.route.start
    foreseen = await foresee(parts, validated.stages, price, start, embedding, told.append)
    if is_left_out(parts, validated.stages, price, start, foreseen):
        told.append(left_out_note(stage.model, foreseen, price, left_out))
        stage = validated.stages[1]
        option = await _option(parts, tenant, validated, stage, embedding, notes.append)
    elif unscored := unscored_note(parts, validated.stages, start, foreseen):
        told.append(unscored)
    threshold = own_threshold(parts.dataplane.state, foreseen)
    stages, cascade = cascade_stages(validated.stages, kind_of(start), threshold), validated.stages[0].cascade
    route = parts.features.scheduled(option.resolved, replace(option.route, stages=stages, cascade=cascade))
    option = replace(option, route=route)
    explained = await _explained(parts, option, names_model, stage, tuple(dict.fromkeys(notes)), told)
    return explained, option, embedding


async def _option(
    parts: FrontdoorParts,
    tenant: str,
    validated: ValidatedRequest,
    stage: Stage,
    embedding: PromptEmbedding | None,
    note: Note,
) -> PoolOption:
    """Return the first pool option of a request at that stage."""
    held = parts.catalogue.find(stage.model)
    stays, last = stage is not validated.stages[0], validated.stages[-1]
    asker = Asker(tenant, validated.resolved, stage, validated.draw, last.model, stays)
    noise_s = noise_seconds(parts, validated.resolved, last)
    if (why := parts.cache_worth.why_left_out(tenant, noise_s)) and validated.resolved.cacheable:
        note(why)
    option, *_ = await decide_route(parts, asker, held, embedding, note)
    return option


async def _explained(
    parts: FrontdoorParts,
    option: PoolOption,
    names_model: bool,
    entered: Stage,
    notes: Sequence[str],
    told: Sequence[str],
) -> Explanation:
    dataplane, route = parts.dataplane, option.route
    state = dataplane.state
    plan, pool = state.plan, state.pools.get(option.pool) or Pool(option.pool)
    steps = _steps(parts, option, pool)
    residuals = parts.pipelining.why(option.resolved.spec, route)
    features = parts.features.why(option.resolved, route)
    why = reasons(Explained(route, plan, names_model, entered, notes, pool, steps, told, residuals, features))
    thresholds = await _reuse_quality(parts, route.model_digest)
    return Explanation(
        route,
        route.plan_version,
        option.pool,
        predicted_wait_s(dataplane.state, option.pool) * 1000,
        thresholds,
        plan.allocator if plan is not None else "",
        plan.admission_rate if plan is not None else 1.0,
        pool.waiting_count,
        (*why, *of_earned(thresholds)),
    )


def _steps(parts: FrontdoorParts, option: PoolOption, pool: Pool) -> ExplainedSteps:
    """Return the facts that decide its steps, as `generate` would pass them to the dataplane."""
    offers, resolved, route = parts.thinning, option.resolved, option.route
    share = reused_share(route, resolved.spec.num_inference_steps, option.held)
    offer = replace(offers.offer(resolved, route), reused_share=share)
    work = share * work_left(resolved, route.start)
    count = max(offer.remaining_cost, 1.0)
    pressure = foreseen_pressure(parts.dataplane.state, pool, work, count, resolved.deadline_ms / 1000)
    return ExplainedSteps(offers.mode, offer, offers.refusal(resolved, route), pressure)


async def _reuse_quality(parts: FrontdoorParts, model_digest: str) -> tuple[ReuseQuality, ...]:
    gateway = parts.gateway
    if gateway is None:
        return ()
    return await bounded("quality", EXPLAIN_TIMEOUT_S, gateway.reuse_quality(model_digest)) or ()
