"""Where a request starts: embedding, then lookup, each with a bounded wait: what is down costs the cache alone."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import DeadlineExceeded, PentimentoError
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, PlanVersion, Route, Start
from pentimento.domain.image_request import CacheMode, ResolvedRequest
from pentimento.domain.retrieval import LookupAnswer
from services.frontdoor.metrics import CACHE_SKIPS

logger = logging.getLogger(__name__)

T = TypeVar("T")
Note = Callable[[str], None]


@dataclass(frozen=True)
class CacheTimeouts:
    """Seconds that a request waits for parts it can do without."""

    embed_s: float = 0.25
    lookup_s: float = 0.06
    reserve_s: float = 0.05


class Router:
    """Decides routes; keeps nothing. Without an embedder or a gateway every request starts from noise."""

    def __init__(self, embedder: EmbedderClient | None, gateway: GatewayClient | None, timeouts: CacheTimeouts) -> None:
        self._embedder = embedder
        self._gateway = gateway
        self._timeouts = timeouts

    async def embed(self, tenant: str, resolved: ResolvedRequest, note: Note) -> Embedding | None:
        """The prompt's retrieval embedding, or None with a note where the cache has to do without this request."""
        if self._embedder is None or self._gateway is None or not resolved.cacheable:
            return None
        prompts, timeout_s = [resolved.spec.prompt], self._timeouts.embed_s
        embedding = self._embedder.embed_text(prompts, timeout_s, memo_partition=tenant)
        answer = await bounded("embedder", timeout_s, embedding, note)
        return answer[0] if answer else None

    async def decide(
        self,
        tenant: str,
        resolved: ResolvedRequest,
        held: HeldModel,
        embedding: Embedding | None,
        plan_version: PlanVersion,
        note: Note,
    ) -> Route:
        """The route of a request on a model; raises nothing."""
        answer = await self._look_up(scope_of(tenant, resolved, held), resolved, embedding, note)
        return Route(
            route_id=secrets.token_hex(8),
            start=answer.start,
            model=held.model,
            model_digest=held.model_digest,
            plan_version=plan_version,
            reason=answer.reason,
        )

    async def _look_up(
        self, scope: CacheScope, resolved: ResolvedRequest, embedding: Embedding | None, note: Note
    ) -> LookupAnswer:
        if not resolved.cacheable:
            return LookupAnswer(FromNoise(), "the cache was not asked")
        if self._gateway is None or embedding is None:
            return LookupAnswer(FromNoise(), "the cache could not be asked")
        timeout_s = self._timeouts.lookup_s
        lookup = self._gateway.lookup(scope, embedding, resolved.quality, timeout_s)
        answer = await bounded("gateway", timeout_s, lookup, note)
        return answer or LookupAnswer(FromNoise(), "the cache did not answer")


async def bounded(part: str, timeout_s: float, call: Awaitable[T], note: Note) -> T | None:
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
    note(f"cache skipped: {part} {reason}")
    return None


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
