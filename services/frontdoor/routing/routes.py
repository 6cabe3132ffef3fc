"""The effects that decide where a request starts: embedding, then lookup, each with a bounded wait. What is down costs
the cache alone."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pentimento.dataplane.effects import PrepareRoute, ResolveRoute
from pentimento.dataplane.events import RouteOption, RouteResolved
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import DeadlineExceeded, PentimentoError
from pentimento.domain.fleet import HeldModel, PoolPlan
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, PlanVersion, Route, Start
from pentimento.domain.image_request import CacheMode, ResolvedRequest
from pentimento.domain.retrieval import CandidateStart, LookupAnswer, LookupCandidate
from pentimento.policies.serving.entry import (
    IMAGE,
    LATENT,
    NOISE,
    FoundStart,
    Stage,
    StartCandidate,
    choose_start,
    scaled_start_step,
    start_candidates,
    start_lanes,
)
from services.frontdoor.metrics import CACHE_SKIPS
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import Job, RoutedStage
from services.frontdoor.routing.stages import PoolOption, as_painted_by, as_started_by, cascade_stages, fits

logger = logging.getLogger(__name__)

T = TypeVar("T")
Note = Callable[[str], None]


@dataclass(frozen=True)
class Asker:
    """Who asks where to start: a tenant's request at one of its stages. `draw` is the request's own, for the shares of
    plans."""

    tenant: str
    resolved: ResolvedRequest
    stage: Stage
    draw: float


@dataclass(frozen=True)
class Asked:
    """A candidate of a lookup, and the request as its model would paint it."""

    candidate: StartCandidate
    held: HeldModel
    resolved: ResolvedRequest
    scope: CacheScope


def prepare_route(parts: FrontdoorParts, effect: PrepareRoute) -> None:
    """Begin to embed the prompt, beside the journal's commit."""
    job = parts.jobs.get(effect.request_id)
    job.embedding = parts.jobs.spawn(job, _embed_job(parts, job), effect)


def resolve_route(parts: FrontdoorParts, effect: ResolveRoute) -> None:
    """Answer ResolveRoute with RouteResolved."""
    job = parts.jobs.get(effect.request_id)
    parts.jobs.spawn(job, _resolve(parts, job, effect.cascade_stage), effect)


async def embed(parts: FrontdoorParts, tenant: str, resolved: ResolvedRequest, note: Note) -> Embedding | None:
    """The prompt's retrieval embedding, or None with a note where the cache has to do without this request."""
    if parts.embedder is None or parts.gateway is None or not resolved.cacheable:
        return None
    prompts, timeout_s = [resolved.spec.prompt], parts.timeouts.embed_s
    embedding = parts.embedder.embed_text(prompts, timeout_s, memo_partition=tenant)
    answer = await bounded("embedder", timeout_s, embedding, note)
    return answer[0] if answer else None


async def decide_route(
    parts: FrontdoorParts, asker: Asker, held: HeldModel, embedding: Embedding | None, note: Note
) -> tuple[PoolOption, ...]:
    """Where a request may be painted on its way through `asker.stage`, whose model is `held`, under the plan of now:
    the pool that it waits in first, then those that take it while they are idle. Raises nothing."""
    plan = parts.dataplane.state.plan
    pools = tuple(pool for pool in (plan.pools if plan is not None else ()) if _can_paint(parts, asker, pool))
    candidates = start_candidates(pools, asker.stage, asker.draw)
    asked = tuple(_ask(parts, asker, candidate, held) for candidate in candidates)
    answer = await _look_up(parts, asker, asked, embedding, note)
    number = choose_start([_found(parts, one, found) for one, found in zip(asked, answer.starts, strict=True)])
    found, chosen = answer.starts[number], asked[number]
    route = Route(
        route_id=_new_route_id(),
        start=found.start,
        model=chosen.held.model,
        model_digest=chosen.held.model_digest,
        plan_version=plan.version if plan is not None else PlanVersion(),
        reason=found.reason,
    )
    entered = PoolOption(chosen.candidate.pool, chosen.held, chosen.resolved, route)
    lanes = start_lanes(pools, kind_of(found.start), chosen.candidate)
    others = (_lane(parts, asker, entered, pool, held) for pool in lanes)
    return (entered, *(option for option in others if option is not None))


async def bounded(part: str, timeout_s: float, call: Awaitable[T], note: Note | None = None) -> T | None:
    """The answer of a part that a picture can do without; None, counted and noted, when it fails or is late."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except (TimeoutError, DeadlineExceeded):
        reason = "slow"
    except PentimentoError as error:
        reason = "unavailable"
        logger.debug("cache skipped", extra={"part": part, "reason": error.reason})
    CACHE_SKIPS.labels(part, reason).inc()
    if note is not None:
        note(f"cache skipped: {part} {reason}")
    return None


async def _embed_job(parts: FrontdoorParts, job: Job) -> Embedding | None:
    """Whatever is wrong here costs the cache alone."""
    try:
        return await embed(parts, job.request.tenant, job.request.resolved, job.note)
    except Exception:
        logger.exception("a prompt was not embedded")
        job.note("cache skipped: embedder defect")
        return None


async def _look_up(
    parts: FrontdoorParts, asker: Asker, asked: Sequence[Asked], embedding: Embedding | None, note: Note
) -> LookupAnswer:
    if not asker.resolved.cacheable:
        return _not_asked(asked, "the cache was not asked")
    if parts.gateway is None or embedding is None:
        return _not_asked(asked, "the cache could not be asked")
    timeout_s = parts.timeouts.lookup_s
    candidates = [LookupCandidate(one.scope, one.candidate.latents, one.candidate.images) for one in asked]
    lookup = parts.gateway.lookup(candidates, embedding, asker.resolved.quality, timeout_s)
    answer = await bounded("gateway", timeout_s, lookup, note)
    if answer is None or len(answer.starts) != len(asked):
        return _not_asked(asked, "the cache did not answer")
    return answer


def _not_asked(asked: Sequence[Asked], why: str) -> LookupAnswer:
    return LookupAnswer(tuple(CandidateStart(FromNoise(), why) for _ in asked), search_skipped=True)


def _can_paint(parts: FrontdoorParts, asker: Asker, pool: PoolPlan) -> bool:
    """Whether the pool's model was ever held, and can paint the size; the request's own stage can."""
    held = parts.catalogue.known(pool.model)
    return pool.pool == asker.stage.pool or (held is not None and fits(asker.resolved, held))


def _ask(parts: FrontdoorParts, asker: Asker, candidate: StartCandidate, own: HeldModel) -> Asked:
    held = _held(parts, candidate.model, own)
    resolved = as_painted_by(asker.resolved, held)
    return Asked(candidate, held, resolved, scope_of(asker.tenant, resolved, held))


def _held(parts: FrontdoorParts, model: str, own: HeldModel) -> HeldModel:
    return own if model == own.model else parts.catalogue.known(model) or own


def _found(parts: FrontdoorParts, asked: Asked, found: CandidateStart) -> FoundStart:
    share = steps_saved(found.start) / asked.resolved.spec.num_inference_steps
    seconds = parts.dataplane.service_s(asked.candidate.pool, work_left(asked.resolved, found.start))
    return FoundStart(kind_of(found.start), share, seconds, asked.candidate.stands_in)


def _lane(
    parts: FrontdoorParts, asker: Asker, entered: PoolOption, pool: PoolPlan, own: HeldModel
) -> PoolOption | None:
    held = _held(parts, pool.model, own)
    return as_started_by(entered, pool.pool, as_painted_by(asker.resolved, held), held)


async def _resolve(parts: FrontdoorParts, job: Job, number: int) -> None:
    request, stage = job.request, job.request.stages[number]
    held = await parts.catalogue.wait_for(stage.model)
    started_at = parts.clock.monotonic()
    decided: tuple[PoolOption, ...]
    if request.resolved.replay is not None:
        decided = (_pinned(parts, request.resolved, request.resolved.replay.route, stage, held),)
    else:
        embedding = await job.embedding if job.embedding is not None else None
        asker = Asker(request.tenant, request.resolved, stage, request.draw)
        decided = await decide_route(parts, asker, held, embedding, job.note)
    stages = cascade_stages(request.stages)
    options = tuple(replace(option, route=replace(option.route, stages=stages)) for option in decided)
    parts.starts.count(stage.pool, _steps_saved_of(as_painted_by(request.resolved, held), options[0]))
    now = parts.clock.monotonic()
    job.routed[number] = RoutedStage(options, queued_at=now)
    job.time_stage("route", started_at, now)
    job.audience.routed(options[0].route)
    first, *others = (_as_route_option(option) for option in options)
    parts.submit(
        RouteResolved(request.request_id, first.pool, first.model_digest, first.work, number, spare=tuple(others))
    )


def _pinned(
    parts: FrontdoorParts, resolved: ResolvedRequest, route: Route, stage: Stage, held: HeldModel
) -> PoolOption:
    """A replay's only option: neither the cache nor another pool is asked."""
    plan = parts.dataplane.state.plan
    version = plan.version if plan is not None else PlanVersion()
    return PoolOption(stage.pool, held, resolved, replace(route, route_id=_new_route_id(), plan_version=version))


def _new_route_id() -> str:
    return secrets.token_hex(8)


def _steps_saved_of(own: ResolvedRequest, chosen: PoolOption) -> int:
    """Steps of the request's own stage that the start stands for: plans are made in those."""
    saved = steps_saved(chosen.route.start)
    return scaled_start_step(saved, chosen.resolved.spec.num_inference_steps, own.spec.num_inference_steps)


def _as_route_option(option: PoolOption) -> RouteOption:
    return RouteOption(option.pool, option.route.model_digest, work_left(option.resolved, option.route.start))


def scope_of(tenant: str, resolved: ResolvedRequest, held: HeldModel) -> CacheScope:
    """Everything but prompt and seed that changes the picture; sampler and eta count as part of the scheduler."""
    spec = resolved.spec
    sampler = f"{held.scheduler_digest} {spec.scheduler.value} {spec.eta!r}"
    return CacheScope(
        tenant=tenant,
        model_digest=held.model_digest,
        vae_digest=held.vae_digest,
        scheduler_digest="sha256:" + hashlib.sha256(sampler.encode()).hexdigest(),
        prediction_type=held.prediction_type,
        width_px=spec.width_px,
        height_px=spec.height_px,
        guidance_scale=spec.guidance_scale,
        negative_prompt=spec.negative_prompt,
        num_inference_steps=spec.num_inference_steps,
        shared_pool=resolved.cache is CacheMode.SHARED,
    )


def kind_of(start: Start) -> str:
    """The kind of start as plans name it."""
    match start:
        case FromLatent():
            return LATENT
        case FromImage():
            return IMAGE
        case FromNoise():
            return NOISE


def steps_saved(start: Start) -> int:
    """Denoising steps that the start leaves out."""
    match start:
        case FromLatent():
            return start.resume_step
        case FromImage():
            return start.start_step
        case FromNoise():
            return 0


def work_left(resolved: ResolvedRequest, start: Start) -> float:
    """Pixel steps from that start to the picture."""
    spec = resolved.spec
    return float(spec.width_px * spec.height_px * max(spec.num_inference_steps - steps_saved(start), 1))


def ancestor_depth(start: Start) -> int:
    """Generations between a picture from that start and one painted from noise."""
    return 0 if isinstance(start, FromNoise) else start.donor.ancestor_depth + 1
