"""Keep compared light and heavy images in the object store: a discriminator is trained on them."""

import logging
from collections import Counter
from dataclasses import dataclass, field

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.domain.clock import Clock
from pentimento.domain.compared_pairs import ComparedPair
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.pair_keys import PREFIX, cascade_prefix, is_of_tenant, pair_key, reference_of
from pentimento.wire.codec import to_bytes
from services.frontdoor.metrics import KEPT_PAIRS
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.quality.comparison import Scores

logger = logging.getLogger(__name__)

# Pairs of a cascade that are stored between two listings of its pairs.
_LISTED_AFTER = 50
# Pairs of a cascade that are kept to train a discriminator.
KEPT = 2000


@dataclass(frozen=True)
class LightRecord:
    """Describe a light image of a cascade: digest of its model, confidence (0..1), and the discriminator's verdict."""

    cascade: str
    model_digest: str
    confidence: float
    deferred: bool


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
        """Count a light image that could be sampled."""
        self._seen[cascade, deferred] += 1

    async def keep(
        self, tenant: str, light: LightRecord, heavy_digest: str, scores: Scores, images: tuple[bytes, bytes]
    ) -> None:
        """Store a pair, the light image first. A pair that the store does not take is lost."""
        if not self.limit or tenant in self._erased:
            return
        kind = light.cascade, light.deferred
        self._stored[kind] += 1
        pair = ComparedPair(
            light.cascade,
            light.model_digest,
            heavy_digest,
            scores.prompt,
            scores.quality,
            scores.scratch_quality,
            light.confidence,
            light.deferred,
            min(self._stored[kind] / max(self._seen[kind], 1), 1.0),
            *images,
        )
        data = to_bytes(pair, pb.ComparedPair)
        try:
            await self.keeper.offer(pair_key(light.cascade, tenant, self.clock.wall(), data), data)
            KEPT_PAIRS.inc()
            if self._stored[kind] % _LISTED_AFTER == 1:
                await self._drop_oldest(light.cascade)
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
