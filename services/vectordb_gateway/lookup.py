"""Where should a request start? Search for each candidate, read what the nearest entry holds, select."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pentimento.domain.cache import CandidateStart, LookupAnswer, LookupCandidate
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, Start
from pentimento.policies.followed_cache import CacheInForce
from pentimento.policies.match_prediction import Ruling
from pentimento.policies.reuse_rules import ReuseSource
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import CachedEntry
from pentimento.stores.objects.suspects import Suspects
from pentimento.stores.vectors import AwaitedSearches, VectorIndex, VectorMatch, VectorQuery
from services.vectordb_gateway import metrics
from services.vectordb_gateway.encoder_guard import EncoderGuard
from services.vectordb_gateway.entry_rows import EntryRows
from services.vectordb_gateway.match_predictor.match_watch import Forecast, MatchWatch
from services.vectordb_gateway.repeated_starts import RepeatedStarts
from services.vectordb_gateway.searches import (
    LookupBounds,
    Matches,
    NearestMatches,
    ReadEntries,
    Search,
    SharedSearches,
    image_query,
    latent_query,
)
from services.vectordb_gateway.selection import RuledCandidate, decide
from services.vectordb_gateway.store_threads import StoreThreads
from services.vectordb_gateway.validation import check_candidates, check_quality, pools_of

logger = logging.getLogger(__name__)

_SEARCH_THREAD_COUNT = 8


@dataclass(frozen=True)
class Searched:
    """What was predicted of a lookup (None where no candidate reuses anything), where each candidate starts (None
    where it was not searched), and the seconds that the search took."""

    forecast: Forecast | None
    answer: LookupAnswer | None
    search_s: float = 0.0


@dataclass(frozen=True)
class Question:
    """What one lookup asks: for each of its candidates, near a prompt, at a share of the from-scratch quality."""

    asked: tuple[RuledCandidate, ...]
    vector: bytes
    quality: float | None
    repeat_key: str = ""

    @property
    def pools(self) -> tuple[str, ...]:
        """Return whose entries may be found: all candidates are of one tenant and pool."""
        return pools_of(self.asked[0].candidate.scope)


class _NotSearched(Exception):
    """A search is needed that was not made."""


class _FoundSoon(dict[VectorQuery, list[VectorMatch]]):
    """What the searches found that were made."""

    def __missing__(self, query: VectorQuery) -> list[VectorMatch]:
        raise _NotSearched


class Lookup:
    """Answers within `timeout_s`: whatever is slow, stuck or broken behind it is a miss that says so. The event loop
    itself reads memory alone, never a file."""

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
        """`in_force` says what the plan, or else the operator, asks of hits where a request does not say. Holders of
        `suspects` are not found."""
        self._in_force = in_force
        self._suspects = suspects
        self._guard = guard
        self._watch = watch
        self._index = index
        # Told apart once: whether an object keeps a protocol takes as long to find out as a vector to check.
        self._awaited = index if isinstance(index, AwaitedSearches) else None
        self._rows = EntryRows(ledger, bounds.row_age_s)
        self._reuse = reuse
        self._bounds = bounds
        self._timeout_s = bounds.timeout_s
        self._threads = StoreThreads(_SEARCH_THREAD_COUNT, "search")
        self._in_outage = False
        self._repeats = RepeatedStarts()
        self.lookup_count = 0
        self.hit_count = 0

    async def lookup(
        self,
        candidates: Sequence[LookupCandidate],
        embedding: Embedding,
        quality: float | None,
        repeat_key: str = "",
    ) -> LookupAnswer:
        """Return where each of the candidates starts; `repeat_key` is the digest of the request's prompt and seed.
        Raises InvalidArgument for an incomplete scope or an embedding that is not of the cache's encoder."""
        check_candidates(candidates)
        check_quality(quality)
        self._guard.check(embedding, "text_embedding")
        now = self._in_force()
        wanted = quality if quality is not None else now.alpha
        asked = tuple(self._ask(candidate, embedding, wanted) for candidate in candidates)
        answer = await self._answer(Question(asked, embedding.values, wanted, repeat_key))
        self._count(answer)
        return _told(answer, now.told)

    def close(self) -> None:
        """Let go of the threads; a search that still runs ends by its own timeout."""
        self._threads.close()

    @property
    def stuck_s(self) -> float:
        """Return for how many seconds the oldest search or read has been running that a thread makes."""
        return self._threads.stuck_s

    async def _answer(self, question: Question) -> LookupAnswer:
        asked = question.asked
        if why := self._not_asked():
            return _skipped(asked, why)
        try:
            searched = await self._search(question)
        except TimeoutError:
            return _skipped(asked, f"search abandoned after {self._timeout_s * 1000:.0f} ms")
        except InvalidArgument:
            raise
        except PentimentoError as error:
            self._note_outage(error.message)
            return _skipped(asked, error.message)
        self._in_outage = False
        if searched.answer is None:
            return _skipped(asked, "no near entry is likely")
        if searched.forecast is not None:
            self._learn(searched.forecast, searched.search_s, _saved_share(asked, searched.answer))
        return searched.answer

    def _learn(self, forecast: Forecast, search_s: float, saved_share: float) -> None:
        """Tell the predictor at once what costs nothing; the rest is learnt after the answer."""
        self._watch.note_search(forecast, search_s, saved_share)
        if self._watch.wants_to_study(forecast):
            with suppress(RuntimeError):  # the gateway closes: there is nothing left to learn for
                self._threads.submit(partial(self._watch.study, forecast, saved_share))

    def _ask(self, candidate: LookupCandidate, embedding: Embedding, quality: float | None) -> RuledCandidate:
        reuse = self._reuse.of(candidate.scope.model_digest, embedding.encoder_digest)
        return RuledCandidate(candidate, reuse, reuse.rules(quality))

    def _not_asked(self) -> str:
        """Why the index is not even searched; empty where it is."""
        if not self._reuse.reuses_anything:
            return "reuse is switched off"
        if random.random() < self._bounds.scratch_share:
            return "from scratch, as a share of all are"
        if not self._guard.bound:
            return "the cache is empty"
        return "" if self._guard.prepared else "the index is not ready"

    def _note_outage(self, why: str) -> None:
        """One line an outage, not one a lookup."""
        if not self._in_outage:
            logger.warning("lookups continue without the cache: %s", why)
        self._in_outage = True

    async def _search(self, question: Question) -> Searched:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                if (searched := await self._nearest_soon(question)) is not None:
                    return searched
                return await self._threads.run(self._nearest, question)
        finally:
            metrics.SEARCH_SECONDS.observe(time.perf_counter() - started)

    def _nearest(self, question: Question) -> Searched:
        """Candidates whose entries are the same share a search, and all of them a forecast."""
        wanted = any(one.wants_latent or one.wants_image for one in question.asked)
        forecast = self._watch.forecast(question.pools, question.vector) if wanted else None
        if forecast is not None and forecast.ruling is Ruling.SKIP:
            return Searched(forecast, None)
        began_s = time.perf_counter()
        answer = self._decide(question, partial(self._index.search, timeout_s=self._timeout_s), self._rows.read)
        return Searched(forecast, answer, time.perf_counter() - began_s)

    async def _nearest_soon(self, question: Question) -> Searched | None:
        """What `_nearest` does, with no thread but for a read of the ledger: handing it over and back takes as long as
        some searches. None where a part of it could keep the event loop waiting."""
        if self._watch.rules or self._awaited is None:
            return None
        wanted = _queries(question)
        forecast = self._watch.forecast(question.pools, question.vector) if wanted else None
        if forecast is not None and forecast.ruling is Ruling.SKIP:
            return Searched(forecast, None)
        began_s = time.perf_counter()
        found = await self._found_soon(self._awaited, wanted)
        if len(found) < len(wanted):
            return None
        before = (self._repeats.entry_id(question.repeat_key, one.candidate.scope) for one in question.asked)
        ids = (match.entry_id for matches in found.values() for match in matches)
        rows = await self._read_soon([*ids, *filter(None, before)])
        try:
            answer = self._decide(question, found.__getitem__, lambda _: rows)
        except _NotSearched:
            # None of those found may serve: a thread looks for more.
            return None
        return Searched(forecast, answer, time.perf_counter() - began_s)

    async def _found_soon(self, index: AwaitedSearches, wanted: Sequence[VectorQuery]) -> "_FoundSoon":
        """What was found by those of the searches that could be sent at once. One alone, as most lookups make, needs no
        task of its own."""
        searches = [index.search_soon(query, self._timeout_s) for query in wanted]
        gathered = [await searches[0]] if len(searches) == 1 else await asyncio.gather(*searches)
        found = zip(wanted, gathered, strict=True)
        return _FoundSoon({query: matches for query, matches in found if matches is not None})

    async def _read_soon(self, found: list[str]) -> Mapping[str, CachedEntry]:
        """The live ones of the entries, by a thread unless all of them are in memory."""
        entry_ids = list(dict.fromkeys(found))
        kept = self._rows.kept(entry_ids)
        return kept if len(kept) == len(entry_ids) else await self._threads.run(self._rows.read, entry_ids)

    def _decide(self, question: Question, search: Search, read: ReadEntries) -> LookupAnswer:
        """Where each candidate starts, by what `search` finds and the ledger knows of it."""
        read = self._but_suspects(read)
        known = (question.vector, question.pools, self._bounds)
        searches = SharedSearches(search, read, *known, repeat_key=question.repeat_key)
        return LookupAnswer(tuple(self._start_of(one, question, searches, read) for one in question.asked))

    def _start_of(
        self, one: RuledCandidate, question: Question, searches: SharedSearches, read: ReadEntries
    ) -> CandidateStart:
        """Where it started before, while that entry serves; else by what is found."""
        key, scope = question.repeat_key, one.candidate.scope
        before = self._repeats.matches(key, scope, lambda entry_id: read([entry_id]).get(entry_id), question.pools)
        if before is not None:
            again = decide(one, before, question.quality, key)
            if not isinstance(again.start, FromNoise):
                return again
        found = decide(one, _matches(searches, one), question.quality, key)
        self._repeats.note(key, scope, found.start)
        return found

    def _but_suspects(self, read: ReadEntries) -> ReadEntries:
        suspect = self._suspects.holders if self._suspects is not None else frozenset()
        if not suspect:
            return read
        return lambda found: {one: entry for one, entry in read(found).items() if one not in suspect}

    def _count(self, answer: LookupAnswer) -> None:
        """A lookup is a hit when any candidate has a start; it is counted by the first kind found."""
        self.lookup_count += 1
        kinds = [type(found.start) for found in answer.starts if not isinstance(found.start, FromNoise)]
        self.hit_count += bool(kinds)
        outcome = "skipped" if answer.search_skipped else "miss"
        metrics.LOOKUPS.labels(kinds[0].__name__.removeprefix("From").lower() if kinds else outcome).inc()


def _queries(question: Question) -> list[VectorQuery]:
    """Return the searches that the candidates need, each once."""
    vector, pools, asked = question.vector, question.pools, question.asked
    latents = [latent_query(vector, pools, one.candidate.scope) for one in asked if one.wants_latent]
    images = [image_query(vector, pools, one.candidate.scope) for one in asked if one.wants_image]
    return list(dict.fromkeys([*latents, *images]))


def _matches(searches: SharedSearches, one: RuledCandidate) -> Matches:
    scope, nothing = one.candidate.scope, NearestMatches()
    return Matches(
        searches.latents(scope) if one.wants_latent else nothing,
        searches.images(scope) if one.wants_image else nothing,
    )


def _told(answer: LookupAnswer, by: str) -> LookupAnswer:
    """The answer, whose reasons say what a plan had to do with them."""
    if not by:
        return answer
    return replace(answer, starts=tuple(replace(one, reason=f"{one.reason}; {by}") for one in answer.starts))


def _skipped(asked: Sequence[RuledCandidate], why: str) -> LookupAnswer:
    return LookupAnswer(tuple(CandidateStart(FromNoise(), f"miss: {why}") for _ in asked), search_skipped=True)


def _saved_share(asked: Sequence[RuledCandidate], answer: LookupAnswer) -> float:
    """The largest share of its steps that a candidate's start saves; 0 for a miss."""
    counts = (one.candidate.scope.num_inference_steps for one in asked)
    return max(_steps_saved(found.start) / count for found, count in zip(answer.starts, counts, strict=True))


def _steps_saved(start: Start) -> int:
    match start:
        case FromLatent() | FromImage():
            return start.saved_steps
    return 0
