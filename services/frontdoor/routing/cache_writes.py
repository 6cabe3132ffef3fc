"""Call optional services with a bounded wait; reserve, commit and release cache entries, and report defective ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane.effects import CommitCacheEntries, ReleaseGrant
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    PermissionDenied,
    Unauthenticated,
)
from pentimento.domain.generation import CacheGrant, CapturedEntries, FromImage, FromLatent, Route, Start
from pentimento.domain.image_request import CacheMode
from pentimento.domain.replay import ancestor_of, taken_of
from services.frontdoor.metrics import CACHE_SKIPS
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import Execution, Job, PendingEntries
from services.frontdoor.routing.starts import ancestor_depth, kind_of, repeat_key_of, scope_of, steps_saved

logger = logging.getLogger(__name__)

T = TypeVar("T")

IMAGE_REUSE = "image reuse"
# Lost features that are counted as skips of the cache.
COUNTED = ("cache", IMAGE_REUSE)
Note = Callable[[str], None]
# A service that answers so is running: a restart would change nothing.
_REFUSALS = (InvalidArgument, NotFound, Unauthenticated, PermissionDenied, FailedPrecondition)


async def bounded(
    part: str, timeout_s: float, call: Awaitable[T], note: Note | None = None, *, loses: str = "cache"
) -> T | None:
    """Return the answer of an optional service; None, counted and noted, if it fails or is late. `loses`: the feature
    that the request then lacks."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except (TimeoutError, DeadlineExceeded):
        reason = "slow"
    except PentimentoError as error:
        reason = "refused" if isinstance(error, _REFUSALS) else "unavailable"
        logger.debug("%s skipped", loses, extra={"part": part, "reason": error.reason})
    if loses in COUNTED:
        CACHE_SKIPS.labels(part, reason).inc()
    if note is not None:
        note(f"{loses} skipped: {part} {reason}")
    return None


# Commits are off the critical path; this only bounds the wait of a drain.
COMMIT_TIMEOUT_S = 5.0
# Seconds that an attempt waits for its grant, times the wait factor.
RESERVE_S = 0.05


async def reserve_entries(parts: FrontdoorParts, job: Job, execution: Execution) -> CacheGrant | None:
    """Return a grant for the attempt; None if the cache takes nothing from it. It fails no request, and delays none
    beyond `RESERVE_S`."""
    embedding = job.embedding.result() if job.embedding is not None and job.embedding.done() else None
    resolved, held, route = execution.resolved, execution.held, execution.route
    if parts.gateway is None or embedding is None or held is None or not job.asks_cache:
        return None
    if resolved.cache is CacheMode.READ or not resolved.cacheable:
        return None
    scope = scope_of(job.request.tenant, resolved, held, route.lora_patch_step, route.pipelined_from_step)
    attempt = execution.attempt
    timeout_s = RESERVE_S * parts.wait_factor
    keeps_image = parts.image_embedder is not None and parts.image_embedder.embeds_images
    start_step, depth = steps_saved(route.start), ancestor_depth(route.start)
    call = parts.gateway.reserve(
        scope,
        attempt,
        start_step,
        depth,
        timeout_s,
        keeps_image=keeps_image,
        start_kind=kind_of(route.start),
        light=execution.stage + 1 < len(job.stages),
        tenant_cache_bytes=parts.tenants.quota_of(job.request.tenant).cache_bytes,
    )
    grant = await bounded("reserve", timeout_s, call)
    if grant is not None:
        key = (attempt.request_id, attempt.fencing_token)
        parts.grants[key] = PendingEntries(scope, embedding, execution, grant)
    return grant


def commit_entries(parts: FrontdoorParts, effect: CommitCacheEntries) -> None:
    """Commit the entries of an accepted attempt, so that lookups find them."""
    pending = parts.grants.pop((effect.request_id, effect.fencing_token), None)
    if pending is not None and parts.gateway is not None:
        parts.jobs.spawn_background(_commit(parts, parts.gateway, pending), effect)


def release_grant(parts: FrontdoorParts, effect: ReleaseGrant) -> None:
    """Release the grant of an attempt that failed or was fenced off."""
    pending = parts.grants.pop((effect.request_id, effect.fencing_token), None)
    if pending is not None and parts.gateway is not None:
        parts.jobs.spawn_background(_release(parts.gateway, pending.grant), effect)


def report_bad_donor(parts: FrontdoorParts, route: Route, reason: str) -> None:
    """Report to the gateway, which repairs the entry, that a worker could not read the route's start."""
    match route.start:
        case FromLatent(latent=reference, donor=donor) | FromImage(image=reference, donor=donor):
            if parts.gateway is not None:
                call = parts.gateway.report_bad_object(donor.entry_id, reference.key, reason, COMMIT_TIMEOUT_S)
                parts.jobs.spawn_background(bounded("report", COMMIT_TIMEOUT_S, call), "report bad object")


def report_start(parts: FrontdoorParts, route: Route, taken: bool) -> None:
    """Report to the gateway whether a worker could use the route's start, if that comes from the cache."""
    reference = ancestor_of(route.start) if not route.replay_of else None
    if parts.gateway is not None and reference is not None:
        from_image = isinstance(route.start, FromImage)
        call = parts.gateway.report_start(reference.key, from_image=from_image, taken=taken, timeout_s=COMMIT_TIMEOUT_S)
        parts.jobs.spawn_background(bounded("report", COMMIT_TIMEOUT_S, call), "report start")


def _start_taken(execution: Execution) -> Start:
    saved = execution.result.steps_saved if execution.result is not None else 0
    return taken_of(execution.route.start, saved)


async def _commit(parts: FrontdoorParts, gateway: GatewayClient, pending: PendingEntries) -> None:
    execution = pending.execution
    captured = _keepable(execution.result.captured, pending.scope) if execution.result is not None else None
    if captured is not None and captured.image is not None:
        picture = await _embed_picture(parts, pending)
        # Without its embedding no lookup would find the image.
        captured = captured if picture is not None else replace(captured, image=None)
    else:
        picture = None
    if captured is None or not (captured.latents or captured.image):
        await _release(gateway, pending.grant)
        return
    call = _committed(gateway, pending, captured, picture)
    if await bounded("commit", COMMIT_TIMEOUT_S, call) is not None:
        parts.usage.cached(pending.scope.tenant, _size_bytes(captured))


async def _committed(
    gateway: GatewayClient, pending: PendingEntries, captured: CapturedEntries, picture: Embedding | None
) -> str:
    """Return the entry's id. If the image alone is rejected, as one of another encoder is, the latents are kept.
    Rejected entries are released; they would stay stored, and count, until the grant ends."""
    try:
        return await gateway.commit(
            pending.scope,
            pending.execution.attempt,
            captured,
            pending.embedding.text,
            picture,
            ancestor_depth=ancestor_depth(_start_taken(pending.execution)),
            timeout_s=COMMIT_TIMEOUT_S,
            repeat_key=repeat_key_of(pending.execution.resolved.spec),
        )
    except (InvalidArgument, FailedPrecondition) as error:
        if picture is not None and captured.latents and isinstance(error, InvalidArgument):
            return await _committed(gateway, pending, replace(captured, image=None), None)
        await _release(gateway, pending.grant)
        raise


def _keepable(captured: CapturedEntries, scope: CacheScope) -> CapturedEntries:
    """Return the entries that may be committed. Requests without LoRAs find the latents up to the step at which LoRAs
    take effect: such a latent is kept only if none had taken effect before."""
    free_until = scope.adapters_from_step if scope.adapters_digest else 0
    latents = (latent for latent in captured.latents if latent.adapter_free or latent.resume_step > free_until)
    return replace(captured, latents=tuple(latents))


def _size_bytes(captured: CapturedEntries) -> int:
    image_bytes = captured.image.size_bytes if captured.image is not None else 0
    return image_bytes + sum(latent.object.size_bytes for latent in captured.latents)


async def _embed_picture(parts: FrontdoorParts, pending: PendingEntries) -> Embedding | None:
    """Return the accepted image's embedding, computed after the client has its answer; None without one."""
    result, tenant = pending.execution.result, pending.scope.tenant
    if parts.image_embedder is None or result is None:
        return None
    call = parts.image_embedder.embed_image([result.image], COMMIT_TIMEOUT_S, memo_partition=tenant)
    part = "embedder" if parts.image_embedder is parts.embedder else "image_embedder"
    answer = await bounded(part, COMMIT_TIMEOUT_S, call)
    return answer[0] if answer else None


async def _release(gateway: GatewayClient, grant: CacheGrant) -> None:
    await bounded("release", COMMIT_TIMEOUT_S, gateway.release(grant.grant_id, COMMIT_TIMEOUT_S))
