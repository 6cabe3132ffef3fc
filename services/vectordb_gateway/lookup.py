"""Where should a request start? Search, read what the nearest entry holds, select."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pentimento.domain.cache import CacheScope, compatibility_key
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import Donor, FromImage, FromLatent, FromNoise, Start, noise_form_of
from pentimento.domain.retrieval import LookupAnswer
from pentimento.policies.cache_selection import (
    NearestEntry,
    Selection,
    SelectionContext,
    SelectionRules,
    UseImage,
    UseLatent,
    select_start,
)
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CachedEntry
from pentimento.stores.vectors import Space, VectorIndex, VectorQuery
from services.vectordb_gateway import metrics
from services.vectordb_gateway.encoder_guard import EncoderGuard
from services.vectordb_gateway.validation import SHARED_POOL, check_quality, check_scope

logger = logging.getLogger(__name__)

# The nearest may have been evicted a moment ago.
_CANDIDATE_COUNT = 4
_SEARCH_THREAD_COUNT = 8


@dataclass(frozen=True)
class Match:
    """A live entry and its cosine similarity to the query."""

    entry: CachedEntry
    similarity: float


@dataclass(frozen=True)
class Matches:
    """The nearest live entry in each space."""

    by_text: Match | None
    by_image: Match | None


class Lookup:
    """Answers within `timeout_s`: whatever is slow or broken behind it is a miss that says so."""

    def __init__(
        self, guard: EncoderGuard, index: VectorIndex, ledger: CacheLedger, rules: SelectionRules, timeout_s: float
    ) -> None:
        self._guard = guard
        self._index = index
        self._ledger = ledger
        self._rules = rules
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_SEARCH_THREAD_COUNT, "search")
        self._in_outage = False
        self.lookup_count = 0
        self.hit_count = 0

    async def lookup(self, scope: CacheScope, embedding: Embedding, quality: float | None) -> LookupAnswer:
        """Raises InvalidArgument for an incomplete scope or an embedding that is not of the cache's encoder."""
        check_scope(scope)
        check_quality(quality)
        self._guard.check(embedding, "text_embedding")
        answer = await self._answer(scope, embedding, quality)
        self._count(answer)
        return answer

    def close(self) -> None:
        """Let go of the threads; a search that still runs ends by its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, scope: CacheScope, embedding: Embedding, quality: float | None) -> LookupAnswer:
        if not (self._rules.latents or self._rules.images):
            return _skipped("reuse is switched off")
        if not self._guard.bound:
            return _skipped("the cache is empty")
        if not self._guard.prepared:
            return _skipped("the index is not ready")
        try:
            matches = await self._search(scope, embedding)
        except TimeoutError:
            return _skipped(f"search abandoned after {self._timeout_s * 1000:.0f} ms")
        except InvalidArgument:
            raise
        except PentimentoError as error:
            self._note_outage(error.message)
            return _skipped(error.message)
        self._in_outage = False
        return _decide(scope, matches, quality, self._rules)

    def _note_outage(self, why: str) -> None:
        """One line an outage, not one a lookup."""
        if not self._in_outage:
            logger.warning("lookups go on without the cache: %s", why)
        self._in_outage = True

    async def _search(self, scope: CacheScope, embedding: Embedding) -> Matches:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._nearest, scope, embedding.values)
        finally:
            metrics.SEARCH_SECONDS.observe(time.perf_counter() - started)

    def _nearest(self, scope: CacheScope, vector: bytes) -> Matches:
        by_text = self._nearest_in(Space.TEXT, scope, vector)
        return Matches(by_text, self._nearest_in(Space.IMAGE, scope, vector) if self._rules.images else None)

    def _nearest_in(self, space: Space, scope: CacheScope, vector: bytes) -> Match | None:
        pools = (scope.tenant, SHARED_POOL) if scope.shared_pool else (scope.tenant,)
        key = compatibility_key(scope)
        query = VectorQuery(space, vector, pools, key, _CANDIDATE_COUNT)
        for match in self._index.search(query, self._timeout_s):
            entry = self._ledger.live_entry(match.entry_id)
            # The ledger is the truth: whatever the index says, nobody gets another pool's entry.
            if entry is not None and entry.pool in pools and entry.compatibility_key == key:
                return Match(entry, match.similarity)
        return None

    def _count(self, answer: LookupAnswer) -> None:
        self.lookup_count += 1
        is_hit = not isinstance(answer.start, FromNoise)
        self.hit_count += is_hit
        outcome = "skipped" if answer.search_skipped else type(answer.start).__name__.removeprefix("From").lower()
        metrics.LOOKUPS.labels("miss" if outcome == "noise" else outcome).inc()


def _skipped(why: str) -> LookupAnswer:
    return LookupAnswer(FromNoise(), f"miss: {why}", search_skipped=True)


def _decide(scope: CacheScope, matches: Matches, quality: float | None, rules: SelectionRules) -> LookupAnswer:
    context = SelectionContext(
        scope.num_inference_steps, _describe(matches.by_text), _describe(matches.by_image), quality
    )
    selection = select_start(context, rules)
    nearest = matches.by_text.similarity if matches.by_text else None
    return LookupAnswer(_start(scope, matches, selection), selection.reason, nearest)


def _describe(match: Match | None) -> NearestEntry | None:
    if match is None:
        return None
    steps = tuple(latent.resume_step for latent in match.entry.latents)
    return NearestEntry(match.similarity, steps, match.entry.image is not None)


def _start(scope: CacheScope, matches: Matches, selection: Selection) -> Start:
    match selection:
        case UseLatent() if matches.by_text is not None:
            return _from_latent(scope, matches.by_text, selection.resume_step)
        case UseImage() if matches.by_image is not None:
            return _from_image(scope, matches.by_image, selection.start_step)
    return FromNoise()


def _from_latent(scope: CacheScope, match: Match, resume_step: int) -> Start:
    latent = next(each for each in match.entry.latents if each.resume_step == resume_step)
    donor = Donor(match.entry.entry_id, latent.object.digest, match.similarity, match.entry.ancestor_depth)
    return FromLatent(latent.object, resume_step, scope.num_inference_steps, latent.sigma, donor)


def _from_image(scope: CacheScope, match: Match, start_step: int) -> Start:
    image = match.entry.image
    if image is None:
        return FromNoise()
    donor = Donor(match.entry.entry_id, image.digest, match.similarity, match.entry.ancestor_depth)
    return FromImage(image, start_step, noise_form_of(scope.prediction_type), donor)
