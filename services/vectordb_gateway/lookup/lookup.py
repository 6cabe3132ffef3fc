"""Decide where a request starts: search for each candidate, read the entries found, and choose."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pentimento.domain.cache import CandidateStart, LookupAnswer, LookupCandidate, Neighbour
from pentimento.domain.embedding import Embedding, PromptEmbedding, Space
from pentimento.domain.errors import DeadlineExceeded, InvalidArgument, PentimentoError
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, Start
from pentimento.policies.cache_selection import NEAREST_COUNT
from pentimento.policies.followed_cache import CacheInForce
from pentimento.policies.match_prediction import Ruling
from pentimento.policies.reuse_rules import ReuseSource
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import CachedEntry
from pentimento.stores.objects.suspects import Suspects
from pentimento.stores.vectors import VectorIndex
from services.vectordb_gateway import metrics
from services.vectordb_gateway.entries.checks import check_candidates, check_noise_s, check_quality, pools_of
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.lookup.repeats import EntryRows, RepeatedStarts
from services.vectordb_gateway.lookup.search import (
    MAX_NEIGHBOUR_COUNT,
    LookupBounds,
    LookupSearch,
    Matches,
    ReadEntries,
    neighbours_of,
)
from services.vectordb_gateway.lookup.selection import RuledCandidate, decide
from services.vectordb_gateway.match_predictor.match_watch import Forecast, MatchWatch, Standing
from services.vectordb_gateway.upkeep.store_calls import StoreThreads

logger = logging.getLogger(__name__)

_NO_IMAGE_QUERY = "images have another encoder, which did not embed the prompt"
# One reads rows while the other studies for the predictor.
_THREAD_COUNT = 2
_NEIGHBOURS_WITHIN_S = 1.0


class Lookup:
    """Answers within `timeout_s`: a slow, stuck or broken store is a miss with that reason. The event loop searches
    and reads memory alone; a thread reads rows that are not in memory."""

    def __init__(
        self,
        guard: EncoderGuard,
        index: VectorIndex,
        ledger: CacheLedger,
        reuse: ReuseSource,
        bounds: LookupBounds,
        watch: MatchWatch,
        in_force: Callable[[], CacheInForce] = CacheInForce,
        suspects: Suspects | None = None,
    ) -> None:
        """`in_force` says what the plan, or else the operator, asks of hits if a request does not say. Holders of
        `suspects` are not found."""
        self._in_force = in_force
        self._suspects = suspects
        self._guard = guard
        self._watch = watch
        self._index = index
        self._rows = EntryRows(ledger, bounds.row_age_s)
        self._reuse = reuse
        self._bounds = bounds
        self._timeout_s = bounds.timeout_s
        self._threads = StoreThreads(_THREAD_COUNT, "search")
        self._in_outage = False
        self._repeats = RepeatedStarts()
        self.lookup_count = 0
        self.hit_count = 0
        self.hole_count = 0
        self.hole_step_count = 0

    async def lookup(
        self,
        candidates: Sequence[LookupCandidate],
        prompt: PromptEmbedding,
        quality: float | None,
        repeat_key: str = "",
        noise_s: float | None = None,
    ) -> LookupAnswer:
        """Return where each of the candidates starts; `repeat_key` is the digest of the request's prompt and seed,
        `noise_s` what its image takes from noise, None for unknown. Raises InvalidArgument for an incomplete scope or
        a text embedding that is not of the cache's encoder."""
        check_candidates(candidates)
        check_quality(quality)
        check_noise_s(noise_s)
        vectors, now = self._guard.searched(prompt), self._in_force()
        wanted = quality if quality is not None else now.alpha
        asked = tuple(self._ruled(candidate, vectors, wanted) for candidate in candidates)
        # All candidates are of one tenant and pool.
        pools = pools_of(candidates[0].scope)
        search = self._search(self._read, vectors, pools, self._bounds, repeat_key=repeat_key)
        if noise_s is not None:
            self._watch.note_image(noise_s)
        answer = await self._answer(asked, search, wanted)
        self._count(answer)
        return _explained(answer, now.told)

    async def neighbours(
        self, candidate: LookupCandidate, prompt: PromptEmbedding, limit_count: int
    ) -> tuple[Neighbour, ...]:
        """Return the live entries nearest by their prompts, then those by their images; nothing is decided, counted or
        learnt. Raises InvalidArgument for an incomplete scope, another encoder's embedding or a wrong `limit_count`;
        StoreUnavailable; DeadlineExceeded."""
        check_candidates([candidate])
        vectors = self._guard.searched(prompt)
        if not 1 <= limit_count <= MAX_NEIGHBOUR_COUNT:
            raise InvalidArgument.of("limit_count", f"must be between 1 and {MAX_NEIGHBOUR_COUNT}, got {limit_count}")
        if not self._guard.bound or not self._guard.prepared:
            return ()
        bounds, pools = replace(self._bounds, timeout_s=_NEIGHBOURS_WITHIN_S), pools_of(candidate.scope)
        search = self._search(self._read_live, vectors, pools, bounds, limit_count)
        candidate = replace(candidate, images=candidate.images and Space.IMAGE in vectors)
        try:
            async with asyncio.timeout(bounds.timeout_s):
                return await neighbours_of(candidate, search)
        except TimeoutError:
            raise DeadlineExceeded("STORE_SLOW", f"the index did not answer in {bounds.timeout_s:g} s") from None

    @property
    def standing(self) -> Standing:
        """Return whether the match predictor skips searches now, and why."""
        return self._watch.standing

    def close(self) -> None:
        """Release the threads; a read that still runs ends by its own timeout."""
        self._threads.close()

    @property
    def stuck_s(self) -> float:
        """Return for how many seconds the oldest read of a thread has been running."""
        return self._threads.stuck_s

    def _search(
        self,
        read: ReadEntries,
        vectors: Mapping[Space, Embedding],
        pools: tuple[str, ...],
        bounds: LookupBounds,
        limit_count: int = NEAREST_COUNT,
        repeat_key: str = "",
    ) -> LookupSearch:
        text, image = vectors[Space.TEXT].values, vectors.get(Space.IMAGE)
        given = (pools, bounds, limit_count, repeat_key, image.values if image is not None else None)
        return LookupSearch(self._index, read, text, *given)

    def _ruled(
        self, candidate: LookupCandidate, vectors: Mapping[Space, Embedding], quality: float | None
    ) -> RuledCandidate:
        digests = (candidate.scope.model_digest, vectors[Space.TEXT].encoder_digest, candidate.reference_model_digest)
        image = vectors.get(Space.IMAGE)
        reuse = self._reuse.of(*digests, image.encoder_digest if image is not None else self._guard.digest(Space.IMAGE))
        return RuledCandidate(candidate, reuse, reuse.rules(quality), "" if image is not None else _NO_IMAGE_QUERY)

    async def _answer(
        self, asked: Sequence[RuledCandidate], search: LookupSearch, quality: float | None
    ) -> LookupAnswer:
        if why := self._not_asked():
            return _skipped(asked, why)
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._searched(asked, search, quality)
        except TimeoutError:
            return _skipped(asked, f"search abandoned after {self._timeout_s * 1000:.0f} ms")
        except InvalidArgument:
            raise
        except PentimentoError as error:
            self._note_outage(error.message)
            return _skipped(asked, error.message)
        finally:
            metrics.SEARCH_SECONDS.observe(time.perf_counter() - began_s)
        self._in_outage = False
        return answer

    def _not_asked(self) -> str:
        """Return why the index is not even searched; empty if it is."""
        if not self._reuse.reuses_anything:
            return "reuse is switched off"
        if random.random() < self._bounds.scratch_share:
            return "from scratch, as a share of all are"
        if not self._guard.bound:
            return "the cache is empty"
        return "" if self._guard.prepared else "the index is not ready"

    def _note_outage(self, why: str) -> None:
        """Log one line per outage, not per lookup."""
        if not self._in_outage:
            logger.warning("lookups continue without the cache: %s", why)
        self._in_outage = True

    async def _searched(
        self, asked: Sequence[RuledCandidate], search: LookupSearch, quality: float | None
    ) -> LookupAnswer:
        """Return the starts of all candidates. Candidates with the same query share a search, and all candidates one
        forecast."""
        queries = [one.text_query(search) for one in asked if one.wants_latent]
        queries += [search.image_query(one.candidate.scope) for one in asked if one.wants_image]
        forecast = await self._forecast(search) if queries else None
        if forecast is not None and forecast.ruling is Ruling.SKIP:
            return _skipped(asked, "no near entry is likely")
        began_s = time.perf_counter()
        before = (self._repeats.entry_id(search.repeat_key, one.candidate.scope) for one in asked)
        await search.make(queries, filter(None, before))
        answer = LookupAnswer(tuple([await self._start_of(one, search, quality) for one in asked]))
        if forecast is not None:
            self._learn(forecast, time.perf_counter() - began_s, _saved_share(asked, answer))
        return answer

    async def _forecast(self, search: LookupSearch) -> Forecast:
        """Return the predictor's ruling; a thread scores if that would hold the event loop."""
        if self._watch.scores_slowly:
            return await self._threads.run(self._watch.forecast, search.pools, search.vector)
        return self._watch.forecast(search.pools, search.vector)

    def _learn(self, forecast: Forecast, search_s: float, saved_share: float) -> None:
        """Report to the predictor at once what costs nothing; the rest is learnt after the answer."""
        self._watch.note_search(forecast, search_s, saved_share)
        if self._watch.wants_to_study(forecast):
            with suppress(RuntimeError):  # the gateway closes: there is nothing left to learn for
                self._threads.submit(partial(self._watch.study, forecast, saved_share))

    async def _start_of(self, one: RuledCandidate, search: LookupSearch, quality: float | None) -> CandidateStart:
        """Return where the request started before, while that entry serves; else the best start among the matches."""
        key, scope = search.repeat_key, one.candidate.scope
        before = self._repeats.matches(key, scope, search.row, search.pools)
        if before is not None:
            again = decide(one, before, quality, key)
            if not isinstance(again.start, FromNoise):
                return again
        matches = Matches(
            await one.by_text(search) if one.wants_latent else (),
            await search.images(scope) if one.wants_image else (),
        )
        found = decide(one, matches, quality, key)
        self._repeats.note(key, scope, found.start)
        return found

    async def _read(self, entry_ids: Sequence[str]) -> Mapping[str, CachedEntry]:
        """Return the live entries that hold no suspect object, by a thread unless all rows are in memory."""
        rows: Mapping[str, CachedEntry] = self._rows.kept(entry_ids)
        if len(rows) < len(entry_ids):
            rows = await self._threads.run(self._rows.read, entry_ids)
        suspect = self._suspects.holders if self._suspects is not None else frozenset()
        return {one: row for one, row in rows.items() if one not in suspect} if suspect else rows

    async def _read_live(self, entry_ids: Sequence[str]) -> Mapping[str, CachedEntry]:
        return await self._threads.run(self._rows.read, entry_ids)

    def _count(self, answer: LookupAnswer) -> None:
        """Count a lookup as a hit if any candidate has a start, by the first kind found."""
        self.lookup_count += 1
        kinds = [type(found.start) for found in answer.starts if not isinstance(found.start, FromNoise)]
        self.hit_count += bool(kinds)
        outcome = "skipped" if answer.search_skipped else "miss"
        metrics.LOOKUPS.labels(kinds[0].__name__.removeprefix("From").lower() if kinds else outcome).inc()
        if lost := max(found.hole_steps for found in answer.starts):
            self.hole_count += 1
            self.hole_step_count += lost
            metrics.HOLES.labels("latent" if kinds else "noise").inc()
            metrics.HOLE_STEPS.inc(lost)


def _explained(answer: LookupAnswer, by: str) -> LookupAnswer:
    """Add to the reasons what a plan had to do with them."""
    if not by:
        return answer
    return replace(answer, starts=tuple(replace(one, reason=f"{one.reason}; {by}") for one in answer.starts))


def _skipped(asked: Sequence[RuledCandidate], why: str) -> LookupAnswer:
    return LookupAnswer(tuple(CandidateStart(FromNoise(), f"miss: {why}") for _ in asked), search_skipped=True)


def _saved_share(asked: Sequence[RuledCandidate], answer: LookupAnswer) -> float:
    """Return the largest share of its steps that a candidate's start saves, or its trial would; 0 for other misses."""
    counts = (one.candidate.scope.num_inference_steps for one in asked)
    starts = (found.trial or found.start for found in answer.starts)
    return max(_saved_steps(start) / count for start, count in zip(starts, counts, strict=True))


def _saved_steps(start: Start) -> int:
    return start.saved_steps if isinstance(start, FromLatent | FromImage) else 0
