"""Compare images of a prompt with CLIPScore, the cosine of image and prompt, and keep compared pairs to train on."""

import logging
import math
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.clients.embedders import Embedders
from pentimento.dataplane.demand_report import StartCounts
from pentimento.domain.clock import Clock
from pentimento.domain.demand import kept_share
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, PentimentoError
from pentimento.domain.generation import FromNoise, ObjectReference
from pentimento.domain.online_quality import ComparedPair
from pentimento.policies.shadow_painting import is_sampled
from pentimento.stores.objects.pair_keys import PREFIX, cascade_prefix, is_of_tenant, pair_key, reference_of
from pentimento.wire.codec import to_bytes
from services.frontdoor.metrics import COMPARED_IMAGES, KEPT_PAIRS
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.quality.shadow_plans import LightImage
from services.frontdoor.requests.jobs import Execution, Job
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.starts import cascade_name

EMBED_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Scores:
    """Hold the scores of the served image and of the image from noise, by the encoder that embedded the prompt."""

    prompt: Embedding
    quality: float
    scratch_quality: float

    def pair(
        self, cascade: str, digests: tuple[str, str], confidence: float, images: tuple[bytes, bytes], *, deferred: bool
    ) -> ComparedPair:
        """Return the images of a cascade, the light one first, with the digests of their models."""
        return ComparedPair(
            cascade, *digests, self.prompt, self.quality, self.scratch_quality, confidence, deferred, 1.0, *images
        )


async def score(embedder: Embedders, tenant: str, prompt: str, served: bytes, scratch: bytes) -> Scores:
    """Return the scores of two encoded images. Raises FailedPrecondition if the embedder uses different encoders for
    images and texts, and the embedder's errors."""
    (text,) = await embedder.embed_text([prompt], EMBED_TIMEOUT_S, memo_partition=tenant)
    pictures = await embedder.embed_image([served, scratch], EMBED_TIMEOUT_S, memo_partition=tenant)
    if len(pictures) != 2 or {picture.encoder_digest for picture in pictures} != {text.encoder_digest}:
        raise FailedPrecondition("ENCODERS_DIFFER", "images and texts are not of one encoder")
    return Scores(text, *(cosine(text, picture) for picture in pictures))


def cosine(one: Embedding, other: Embedding) -> float:
    """Return the cosine of two unit vectors, -1..1. Raises FailedPrecondition for different lengths."""
    if one.dimension_count != other.dimension_count:
        raise FailedPrecondition("ENCODERS_DIFFER", "the vectors are not of one length")
    pairs = zip(_values(one), _values(other), strict=True)
    return max(-1.0, min(1.0, math.fsum(left * right for left, right in pairs)))


def _values(embedding: Embedding) -> tuple[float, ...]:
    return struct.unpack(f"<{embedding.dimension_count}f", embedding.values)


logger = logging.getLogger(__name__)

# Pairs of a cascade that are stored between two listings of its pairs.
_LISTED_AFTER = 50
# Pairs of a cascade that are kept to train a discriminator.
KEPT = 2000


@dataclass
class KeptPairs:
    """Store compared pairs, the newest `limit` of each cascade; none with 0. `_seen` counts light images that could
    have been compared, `_stored` the compared ones, by cascade and verdict."""

    keeper: ObjectKeeper
    clock: Clock
    limit: int
    _seen: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _stored: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _erased: set[str] = field(default_factory=set)

    def note(self, cascade: str, *, deferred: bool) -> None:
        self._seen[cascade, deferred] += 1

    async def keep(self, tenant: str, pair: ComparedPair) -> None:
        """Store a pair with the share of its kind that is compared. A pair that the store does not take is lost."""
        if not self.limit or tenant in self._erased:
            return
        kind = pair.cascade, pair.deferred
        self._stored[kind] += 1
        share = min(self._stored[kind] / max(self._seen[kind], 1), 1.0)
        data = to_bytes(replace(pair, sampled_share=share), pb.ComparedPair)
        try:
            await self.keeper.offer(pair_key(pair.cascade, tenant, self.clock.wall(), data), data)
            KEPT_PAIRS.inc()
            if self._stored[kind] % _LISTED_AFTER == 1:
                await self._drop_oldest(pair.cascade)
        except PentimentoError as error:
            logger.info("a compared pair is not kept", extra={"reason": error.reason})

    async def of_tenant(self, tenant: str) -> list[ObjectReference]:
        """Return the pairs of an erased tenant's requests, and keep none from now on. Raises StoreUnavailable."""
        # A comparison that began before may end after the erasure.
        self._erased.add(tenant)
        listed = [key async for keys in self.keeper.keys(f"{PREFIX}/") for key in keys if is_of_tenant(key, tenant)]
        return [found for key in listed if (found := reference_of(key)) is not None]

    async def _drop_oldest(self, cascade: str) -> None:
        listed = [key async for keys in self.keeper.keys(cascade_prefix(cascade)) for key in keys]
        for key in sorted(listed)[: -self.limit]:
            await self.keeper.delete(key)


@dataclass(frozen=True)
class Deferrals:
    """Compare a share of the deferred requests in the background; none without an embedder of images."""

    sample_share: float
    prompts: PromptEmbedder
    counts: StartCounts
    pairs: KeptPairs
    spawn: Callable[[Coroutine[Any, Any, None]], object]

    def note(self, job: Job, delivered: Execution) -> None:
        light = deferred_execution(job, delivered)
        if not self.prompts.embeds_images or delivered.result is None or light is None:
            return
        self.pairs.note(_cascade_of(light, delivered), deferred=True)
        if is_sampled(job.request.request_id, self.sample_share):
            self.spawn(self._compare(job, light, delivered))

    async def _compare(self, job: Job, light: Execution, delivered: Execution) -> None:
        embedder = self.prompts.images
        assert embedder is not None
        assert light.result is not None and light.confidence is not None and delivered.result is not None
        images = light.result.image, delivered.result.image
        try:
            prompt = light.resolved.spec.plain_prompt
            scores = await score(embedder, job.request.tenant, prompt, *images)
        except PentimentoError as error:
            COMPARED_IMAGES.labels("failed").inc()
            logger.info("a deferred image is not compared", extra={"reason": error.reason})
            return
        kept = kept_share(scores.quality, scores.scratch_quality)
        COMPARED_IMAGES.labels("not_counted" if kept is None else "counted").inc()
        if kept is not None:
            self.counts.count_compared(job.stages[light.stage].pool, light.confidence, kept)
        digests = light.result.model_digest, delivered.result.model_digest
        pair = scores.pair(_cascade_of(light, delivered), digests, light.confidence, images, deferred=True)
        await self.pairs.keep(job.request.tenant, pair)


def _cascade_of(light: Execution, delivered: Execution) -> str:
    return cascade_name((light.resolved.spec.model, delivered.resolved.spec.model))


def accepted_light(job: Job, delivered: Execution) -> LightImage | None:
    """Return pool, confidence and next model of a delivered image that a discriminator scored; None for any other."""
    following = delivered.stage + 1
    if delivered.confidence is None or following >= len(job.stages):
        return None
    stage = job.stages[delivered.stage]
    return LightImage(stage.pool, delivered.confidence, delivered.resolved.spec.model, job.stages[following].model)


def deferred_execution(job: Job, delivered: Execution) -> Execution | None:
    """Return the last scored attempt of an earlier stage, if its image ran all steps from noise."""
    found = [
        one
        for one in job.executions.values()
        if one.stage < delivered.stage and one.confidence is not None and one.result is not None
    ]
    light = found[-1] if found else None
    if light is None or not isinstance(light.route.start, FromNoise):
        return None
    if light.route.thinned_steps or light.route.full_steps:
        return None
    return light
