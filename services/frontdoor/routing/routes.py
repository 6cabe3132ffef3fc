"""The effects that decide where a request starts: embedding, then lookup, each with a bounded wait. What is down costs
the cache alone."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from pentimento.dataplane.effects import PrepareRoute, ResolveRoute
from pentimento.dataplane.events import RouteOption, RouteResolved
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import DeadlineExceeded, PentimentoError
from pentimento.domain.fleet import HeldModel, PoolPlan
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, PlanVersion, Route, Start
from pentimento.domain.image_request import CacheMode, ResolvedRequest
from pentimento.domain.retrieval import LookupAnswer
from pentimento.policies.serving.entry import IMAGE, start_pools
from services.frontdoor.metrics import CACHE_SKIPS
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import ClientRequest, Job, RoutedStage
from services.frontdoor.routing.stages import PoolOption, as_painted_by, as_started_by, cascade_stages, fits

logger = logging.getLogger(__name__)

T = TypeVar("T")
Note = Callable[[str], None]


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
    parts: FrontdoorParts,
    tenant: str,
    resolved: ResolvedRequest,
    held: HeldModel,
    embedding: Embedding | None,
    note: Note,
) -> Route:
    """The route of a request on a model, under the plan of now; raises nothing."""
    answer = await _look_up(parts, scope_of(tenant, resolved, held), resolved, embedding, note)
    plan = parts.dataplane.state.plan
    return Route(
        route_id=secrets.token_hex(8),
        start=answer.start,
        model=held.model,
        model_digest=held.model_digest,
        plan_version=plan.version if plan is not None else PlanVersion(),
        reason=answer.reason,
    )


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
    parts: FrontdoorParts, scope: CacheScope, resolved: ResolvedRequest, embedding: Embedding | None, note: Note
) -> LookupAnswer:
    if not resolved.cacheable:
        return LookupAnswer(FromNoise(), "the cache was not asked")
    if parts.gateway is None or embedding is None:
        return LookupAnswer(FromNoise(), "the cache could not be asked")
    timeout_s = parts.timeouts.lookup_s
    lookup = parts.gateway.lookup(scope, embedding, resolved.quality, timeout_s)
    answer = await bounded("gateway", timeout_s, lookup, note)
    return answer or LookupAnswer(FromNoise(), "the cache did not answer")


async def _resolve(parts: FrontdoorParts, job: Job, number: int) -> None:
    request, stage = job.request, job.request.stages[number]
    held = await parts.catalogue.wait_for(stage.model)
    started_at = parts.clock.monotonic()
    resolved = as_painted_by(request.resolved, held)
    embedding = await job.embedding if job.embedding is not None else None
    route = await decide_route(parts, request.tenant, resolved, held, embedding, job.note)
    route = replace(route, stages=cascade_stages(request.stages))
    parts.starts.count(stage.pool, steps_saved(route.start))
    options, now = _options(parts, request, PoolOption(stage.pool, held, resolved, route)), parts.clock.monotonic()
    job.routed[number] = RoutedStage(options, queued_at=now)
    job.time_stage("route", started_at, now)
    job.audience.routed(options[0].route)
    first, *others = (_as_route_option(option) for option in options)
    parts.submit(
        RouteResolved(request.request_id, first.pool, first.model_digest, first.work, number, spare=tuple(others))
    )


def _options(parts: FrontdoorParts, request: ClientRequest, own: PoolOption) -> tuple[PoolOption, ...]:
    """The plan's, for a picture to start from; a latent is of use to its own model alone."""
    plan = parts.dataplane.state.plan
    if plan is None or not isinstance(own.route.start, FromImage):
        return (own,)
    options = (
        _option(parts, request.resolved, own, pool) for pool in start_pools(plan.pools, IMAGE, request.draw, own.pool)
    )
    return tuple(option for option in options if option is not None) or (own,)


def _option(parts: FrontdoorParts, asked: ResolvedRequest, own: PoolOption, pool: PoolPlan) -> PoolOption | None:
    """None where the pool's model was never held, or cannot paint it."""
    if pool.model == own.held.model:
        return replace(own, pool=pool.pool)
    held = parts.catalogue.known(pool.model)
    if held is None or not fits(asked, held):
        return None
    return as_started_by(own, pool.pool, as_painted_by(asked, held), held)


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
