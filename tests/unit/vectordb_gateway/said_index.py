"""Lookups over a real ledger, and an index with matches from the test."""

import asyncio
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pentimento.domain.cache import (
    CacheScope,
    CandidateStart,
    LookupAnswer,
    LookupCandidate,
    image_key,
    latent_key,
    scope_digest,
)
from pentimento.domain.embedding import Embedding, PromptEmbedding, Space
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import CapturedEntries, CapturedLatent
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.followed_cache import CacheInForce
from pentimento.policies.reuse_rules import ReuseRules
from pentimento.profiles.catalogue import ProfileSet
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import EntryCommit, GrantedKey, GrantRecord
from pentimento.stores.objects.store import refer_to
from pentimento.stores.vectors.index import VectorMatch, VectorPoint, VectorQuery
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.lookup.lookup import Lookup
from services.vectordb_gateway.lookup.search import LookupBounds
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from tests.support.gateways import scope

ENCODER = "sha256:encoder"
VECTOR = struct.pack("<2f", 1.0, 0.0)
EMBEDDING = Embedding(VECTOR, 2, ENCODER)
PROMPT = PromptEmbedding(EMBEDDING)
IMAGES = (Threshold(0.3, 0.6),)
NOBODY = str(uuid.uuid4())


class SaidIndex:
    """Answers every search with `said` of its space, after `gate` is open; `error` is raised instead."""

    backend = "said"
    starts_count = 0

    def __init__(self) -> None:
        self.said: dict[Space, list[VectorMatch]] = {}
        self.queries: list[tuple[VectorQuery, float]] = []
        self.error: PentimentoError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        self.queries.append((query, timeout_s))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.said.get(query.space, [])[: query.limit_count]

    def prepare(self, text: int, image: int | None = None) -> None: ...

    def settle(self) -> None: ...

    def upsert(self, points: Sequence[VectorPoint]) -> None: ...

    def delete(self, entry_ids: Sequence[str]) -> None: ...

    def entry_ids(self, after: str = "", until: str | None = None) -> Iterator[str]:
        return iter(())

    def close(self) -> None: ...


def candidates(*of: CacheScope) -> list[LookupCandidate]:
    return [LookupCandidate(each) for each in of]


@dataclass
class Gateway:
    """A lookup over the ledger, and the index's matches in each space. `reopens`: every lookup is of a new process."""

    ledger: CacheLedger
    index: SaidIndex = field(default_factory=SaidIndex)

    def __post_init__(self) -> None:
        self.guard = EncoderGuard(self.ledger, self.index)
        self.watch = MatchWatch(self.ledger)
        self.rules = SelectionRules()
        self.profiles = ProfileSet()
        self.timeout_s, self.scratch_share, self.row_age_s = 5.0, 0.0, 0.0
        self.in_force = CacheInForce()
        self._lookups: list[Lookup] = []
        self.reopens = True

    def open(self) -> Lookup:
        bounds = LookupBounds(self.timeout_s, self.scratch_share, self.row_age_s)
        reuse = ReuseRules(self.rules, self.profiles)
        parts = (self.guard, self.index, self.ledger, reuse, bounds, self.watch)
        self._lookups.append(Lookup(*parts, in_force=lambda: self.in_force))
        return self._lookups[-1]

    async def ask(self, *of: CacheScope, quality: float | None = None, repeat_key: str = "") -> LookupAnswer:
        """Look up several candidates."""
        lookup = self.open() if self.reopens or not self._lookups else self._lookups[-1]
        return await lookup.lookup(candidates(*of), PROMPT, quality, repeat_key)

    async def lookup(
        self, of: CacheScope | None = None, quality: float | None = None, repeat_key: str = ""
    ) -> CandidateStart:
        """Look up one candidate."""
        return (await self.ask(of or scope(), quality=quality, repeat_key=repeat_key)).starts[0]

    def store(
        self,
        pool: str = "tenant",
        of: CacheScope | None = None,
        image: bool = False,
        repeat_key: str = "",
        created_at: float = 1.0,
    ) -> str:
        """Store a live entry with a latent of step 5, and return its id."""
        name, of = f"g{uuid.uuid4().hex}", of or scope()
        digest, by_step = scope_digest(of), {5: latent_key(of, 5), None: image_key(of)}
        keys = (GrantedKey(f"{name}/5", 5), GrantedKey(f"{name}/image", None))
        self.ledger.reserve(GrantRecord(name, pool, "tenant", digest, "r1", 7, 1e12, keys)).result()
        latent = CapturedLatent(5, 0.25, refer_to(f"{name}/5", b"latent"), True)
        captured = CapturedEntries(name, (latent,), refer_to(f"{name}/image", b"image") if image else None)
        vectors = {"text_vector": VECTOR, "image_vector": VECTOR if image else None}
        commit = EntryCommit(
            str(uuid.uuid4()),
            captured,
            "tenant",
            pool,
            digest,
            by_step,
            "r1",
            7,
            **vectors,
            ancestor_depth=3,
            created_at=created_at,
            step_count=50,
            repeat_key=repeat_key,
        )  # type: ignore[arg-type]
        return self.ledger.commit(commit).result()

    def say(self, *entry_ids: str, similarity: float = 0.99, space: Space = Space.TEXT) -> None:
        """Set the index's answer, best match first."""
        self.index.said[space] = [VectorMatch(entry_id, similarity) for entry_id in entry_ids]

    def close(self) -> None:
        self.index.gate.set()
        for lookup in self._lookups:
            lookup.close()
