"""Decide where a request starts: embed, then look up, each with a bounded wait; a service that is down costs a hit."""

import asyncio
import logging
from dataclasses import replace

from pentimento.clients.embedders import Embedders
from pentimento.dataplane.cascade import own_threshold
from pentimento.dataplane.demand_report import CountedStart
from pentimento.dataplane.effects import PrepareRoute, ResolveRoute, Score
from pentimento.dataplane.events import RouteOption, RouteResolved, Scored
from pentimento.domain.embedding import Embedding, PromptEmbedding
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Route
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.latent_pairing import PairingMode, can_pair
from pentimento.policies.plan.entry import (
    NOISE,
    Stage,
    allowed_stages,
    replanned_stages,
    scaled_start_step,
    stages_from,
)
from services.frontdoor.metrics import CACHE_LEFT_OUT, LEFT_OUT, UNSCORED
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import Job, RoutedStage
from services.frontdoor.routing.cache_writes import IMAGE_REUSE, Note, bounded
from services.frontdoor.routing.foresight import (
    foresee,
    foresees,
    is_left_out,
    left_out_note,
    light_price,
    noise_seconds,
    note_gain,
    scored_prompt,
    unscored_note,
    why_left_out,
)
from services.frontdoor.routing.start_choice import Asker, decide_route, expected_device_s, new_route_id
from services.frontdoor.routing.starts import (
    PoolOption,
    as_painted_by,
    cascade_stages,
    discriminator_of,
    kind_of,
    known_stages,
    may_be_scored,
    restaged,
    reused_share,
    steps_saved,
    work_left,
)

logger = logging.getLogger(__name__)

# Seconds that a request waits for its prompt's embedding, times the wait factor.
EMBED_S = 0.25


def prepare_route(parts: FrontdoorParts, effect: PrepareRoute) -> None:
    """Begin to embed the prompt, in parallel with the journal's commit."""
    job = parts.jobs.get(effect.request_id)
    job.light_price = light_price(parts, job.request.resolved, job.stages)
    job.cascade_left_out = why_left_out(parts, job.request.resolved, job.stages, job.light_price)
    if job.cascade_left_out and not _asks_cascade(parts, job):
        job.light_price = 1.0
    else:
        job.cascade_left_out = ""
    scored = may_be_scored(job.stages) and job.light_price < 1.0
    if _asks_cache(parts, job):
        job.noise_s = noise_seconds(parts, job.request.resolved, job.request.stages[-1])
        job.asks_cache = parts.cache_worth.asks(job.request.tenant, job.noise_s)
        if not job.asks_cache:
            CACHE_LEFT_OUT.inc()
    if scored or _asks_cache(parts, job):
        job.embedding = parts.jobs.spawn(job, _embed_job(parts, job, scored=scored), effect)


def _asks_cascade(parts: FrontdoorParts, job: Job) -> bool:
    next_s = noise_seconds(parts, job.request.resolved, job.stages[1])
    return parts.cascade_worth.asks(discriminator_of(job.stages, 0), next_s)


def resolve_route(parts: FrontdoorParts, effect: ResolveRoute) -> None:
    job = parts.jobs.get(effect.request_id)
    if effect.cascade_stage == 1 and _left_out(parts, job):
        job.note(left_out_note(job.stages[0].model, job.foreseen, job.light_price, job.cascade_left_out))
        LEFT_OUT.inc()
    job.resolving = effect
    parts.jobs.spawn(job, _resolve(parts, job, effect), effect)


def _left_out(parts: FrontdoorParts, job: Job) -> bool:
    """Return whether the prompt's prediction, and not a lack of workers, skipped the light stage."""
    routed = job.routed.get(0)
    if routed is None or not routed.options or 1 in job.routed or job.executions:
        return False
    return is_left_out(parts, job.stages, job.light_price, routed.options[0].route.start, job.foreseen)


async def embed(
    parts: FrontdoorParts, tenant: str, resolved: ResolvedRequest, note: Note, *, scored: bool
) -> PromptEmbedding | None:
    """Return the prompt's embedding; None with a note if cache or discriminator must do without it. Without that of
    another encoder of images no image is found.

    `scored`: whether a discriminator may score the image.
    """
    if parts.embedder is None or not _is_embedded(parts, resolved, scored=scored):
        return None
    prompts, timeout_s = [resolved.spec.plain_prompt], EMBED_S * parts.wait_factor
    is_searched = _is_embedded(parts, resolved, scored=False)

    async def by(embedders: Embedders | None, part: str, loses: str) -> Embedding | None:
        if embedders is None:
            return None
        call = embedders.embed_text(prompts, timeout_s, memo_partition=tenant)
        answer = await bounded(part, timeout_s, call, note, loses=loses)
        return answer[0] if answer else None

    others = parts.image_embedder if parts.image_embedder is not parts.embedder else None
    text, image = await asyncio.gather(
        by(parts.embedder, "embedder", "cache" if is_searched else "prompt's embedding"),
        by(others, "image_embedder", IMAGE_REUSE),
    )
    return None if text is None else PromptEmbedding(text, image)


async def prompt_of(parts: FrontdoorParts, job: Job) -> Embedding | None:
    """Return the embedding for a discriminator.

    The job lacks it only if an earlier process of this frontdoor routed the request, or if its start led to a cascade.
    """
    if job.embedding is None:
        job.embedding = parts.jobs.spawn(job, _embed_job(parts, job, scored=True), "embed for a score")
    return scored_prompt(parts, await job.embedding)


async def _embed_job(parts: FrontdoorParts, job: Job, *, scored: bool) -> PromptEmbedding | None:
    """Embed the prompt; a failure costs only the cache, or the image its score."""
    try:
        return await embed(parts, job.request.tenant, job.request.resolved, job.note, scored=scored)
    except Exception:
        logger.exception("a prompt was not embedded")
        job.note("cache skipped: embedder defect")
        return None


def _asks_cache(parts: FrontdoorParts, job: Job) -> bool:
    return job.asks_cache and _is_embedded(parts, job.request.resolved, scored=False)


def _is_embedded(parts: FrontdoorParts, resolved: ResolvedRequest, *, scored: bool) -> bool:
    return scored or (parts.gateway is not None and resolved.cacheable)


async def _resolve(parts: FrontdoorParts, job: Job, effect: ResolveRoute) -> None:
    request, number = job.request, effect.cascade_stage
    # If the stage was decided before, no worker holds those weights any longer.
    before = job.routed.get(number)
    stages = await _anew(parts, job) if effect.anew else job.stages
    stage, foreseen = stages[number], None
    held = await _awaited_model(parts, job, stage.model)
    if held is None:
        return
    started_at = parts.clock.monotonic()
    decided: tuple[PoolOption, ...]
    if request.resolved.replay is not None:
        decided = (_pinned(parts, request.resolved, request.resolved.replay.route, stage, held),)
    else:
        embedding = await _awaited_embedding(parts, job)
        left_out = "" if job.asks_cache else parts.cache_worth.why_left_out(request.tenant, job.noise_s)
        if number == 0 and job.cascade_left_out:
            left_out = job.cascade_left_out
        asked = (request.tenant, request.resolved, stage, request.draw, stages[-1].model)
        asker = Asker(*asked, stays=number > 0, left_out=left_out, noise_s=job.noise_s or None)
        decided = await decide_route(parts, asker, held, embedding, job.note)
        starts, catalogue = parts.light_starts, parts.catalogue
        decided = tuple(starts.started(job, number, option, catalogue) for option in decided)
        if before is None and _asks_cache(parts, job) and not (number == 0 and job.cascade_left_out):
            _note_saved(parts, job, decided[0])
        if number == 0:
            stages = _stages_from(parts, job, decided[0])
            entry = decided[0].route.start
            foreseen = await foresee(parts, stages, job.light_price, entry, embedding, job.note)
            note_gain(parts, stages, job.light_price, entry, foreseen)
            if unscored := unscored_note(parts, stages, entry, foreseen):
                job.note(unscored)
    if job.resolving is not effect:
        # The request was deferred to another stage during the wait.
        return
    if number == 0 or effect.anew:
        job.restaged, job.foreseen = stages, foreseen
    start = kind_of(decided[0].route.start)
    threshold = own_threshold(parts.dataplane.state, job.foreseen)
    told, cascade = cascade_stages(stages, start, threshold), stages[number].cascade
    routes = (replace(option.route, stages=told, cascade=cascade) for option in decided)
    options = tuple(
        replace(option, route=parts.features.scheduled(option.resolved, route))
        for option, route in zip(decided, routes, strict=True)
    )
    counted = before.counted if before is not None else None
    if number == 0 and before is None:
        counted = _count_start(parts, stage, as_painted_by(request.resolved, held), options[0])
    now = parts.clock.monotonic()
    job.routed[number] = RoutedStage(options, queued_at=now, counted=counted)
    job.time_stage("route", started_at, now)
    job.audience.routed(options[0].route)
    parts.submit(_resolved(parts, job, number, options))


def _resolved(parts: FrontdoorParts, job: Job, number: int, options: tuple[PoolOption, ...]) -> RouteResolved:
    first, *others = (_as_route_option(parts, option) for option in options)
    return RouteResolved(
        job.request.request_id,
        first.pool,
        first.model_digest,
        first.work,
        number,
        tuple(others),
        parts.pairing is not PairingMode.OFF and can_pair(options[0].resolved.spec, options[0].route),
        kind_of(options[0].route.start),
        tuple(stage.pool for stage in job.restaged),
        job.stages[number].cascade,
        first.thinning,
        job.foreseen if number == 0 else None,
        job.light_price if number == 0 else 0.0,
    )


async def _anew(parts: FrontdoorParts, job: Job) -> tuple[Stage, ...]:
    """Return the earlier stages, which have no worker left, and the stages of the present plan.

    Wait for the first planned model: after a start not all workers have registered yet.
    """
    request, quota = job.request, parts.tenants.quota_of(job.request.tenant)
    planned = replanned_stages(parts.dataplane.state.index, request.draw, quota)
    if planned:
        await _awaited_model(parts, job, planned[0].model)
    return restaged(job.stages, planned, request.resolved, parts.catalogue, parts.adapters)


async def _awaited_model(parts: FrontdoorParts, job: Job, name: str) -> HeldModel | None:
    """Return the model as soon as a worker has it; None if the request ends before."""
    while (known := parts.catalogue.known(name)) is None and not job.ended.is_set():
        waiting = [asyncio.ensure_future(parts.catalogue.wait_for(name)), asyncio.ensure_future(job.ended.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
    return known


async def _awaited_embedding(parts: FrontdoorParts, job: Job) -> PromptEmbedding | None:
    """Return the embedding; None immediately if neither a lookup nor a prediction needs it before the image."""
    needed = (job.asks_cache and job.request.resolved.cacheable) or foresees(parts, job.stages, job.light_price)
    return await job.embedding if job.embedding is not None and needed else None


def _note_saved(parts: FrontdoorParts, job: Job, entered: PoolOption) -> None:
    """Note which share of the image from noise, generated by the request's last stage, the stage's lookup saves. A
    trial counts as what it would save: without lookups no reuse would be earned."""
    start = entered.trial.start if entered.trial is not None else entered.route.start
    noise_s = noise_seconds(parts, job.request.resolved, job.request.stages[-1])
    hit_s = expected_device_s(parts, entered.pool, entered.resolved, entered.held, start)
    if noise_s and hit_s is not None:
        share = 0.0 if kind_of(start) == NOISE else 1.0 - hit_s / noise_s
        parts.cache_worth.note(job.request.tenant, share)


def _stages_from(parts: FrontdoorParts, job: Job, entered: PoolOption) -> tuple[Stage, ...]:
    """Return the stages of a request with a known start under the present plan."""
    plan, request = parts.dataplane.state.index, job.request
    start, quota = kind_of(entered.route.start), parts.tenants.quota_of(request.tenant)
    stages = stages_from(plan, request.stages, entered.pool, entered.held.model, start, request.draw, quota)
    return allowed_stages(known_stages(stages, parts.catalogue, request.resolved.admitted), quota)


def _pinned(
    parts: FrontdoorParts, resolved: ResolvedRequest, route: Route, stage: Stage, held: HeldModel
) -> PoolOption:
    """Return a replay's only option, without a lookup or another pool."""
    version = parts.dataplane.state.index.version
    return PoolOption(stage.pool, held, resolved, replace(route, route_id=new_route_id(), plan_version=version))


def _steps_saved_of(own: ResolvedRequest, chosen: PoolOption) -> int:
    """Return the saved steps, scaled to the step count of the request's own stage, which plans use."""
    saved = steps_saved(chosen.route.start)
    return scaled_start_step(saved, chosen.resolved.spec.num_inference_steps, own.spec.num_inference_steps)


def _count_start(
    parts: FrontdoorParts, stage: Stage, own: ResolvedRequest, chosen: PoolOption
) -> tuple[str, CountedStart]:
    kind, model = kind_of(chosen.route.start), chosen.route.model
    start = CountedStart(
        _steps_saved_of(own, chosen), kind, own.spec.num_inference_steps, model if kind != NOISE else ""
    )
    loras = [lora.name for lora in own.spec.loras]
    parts.starts.count(stage.pool, start, loras, [one.name for one in own.spec.controlnets])
    return stage.pool, start


def _as_route_option(parts: FrontdoorParts, option: PoolOption) -> RouteOption:
    route, resolved = option.route, option.resolved
    share = reused_share(route, resolved.spec.num_inference_steps, option.held)
    thinning = replace(parts.thinning.offer(resolved, route), reused_share=share)
    return RouteOption(option.pool, route.model_digest, share * work_left(resolved, route.start), thinning)


# Seconds until the next discriminator is called, times the wait factor.
SCORE_S = 1.0


def score(parts: FrontdoorParts, effect: Score) -> None:
    job = parts.jobs.get(effect.request_id)
    parts.jobs.spawn(job, _score(parts, job, effect.fencing_token), effect)


async def _score(parts: FrontdoorParts, job: Job, token: int) -> None:
    execution = job.executions[token]
    result = execution.result
    assert result is not None
    began_at = parts.clock.monotonic()
    cascade, digest = discriminator_of(job.stages, execution.stage), job.stages[execution.stage].discriminator_digest
    prompt = await prompt_of(parts, job)
    key, timeout_s = (execution.attempt.request_id, token), SCORE_S * parts.wait_factor
    confidence = await parts.discriminators.score(cascade, key, result.image, prompt, timeout_s, digest)
    job.time_stage("score", began_at, parts.clock.monotonic())
    execution.confidence = confidence
    if confidence is None:
        UNSCORED.inc()
    parts.submit(Scored(execution.attempt.request_id, token, confidence))
