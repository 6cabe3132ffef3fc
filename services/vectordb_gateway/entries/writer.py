"""How entries come in: reserve (a grant with keys), the worker's upload, commit; or release. Objects that images
started from are pinned for as long as their tenants asked, so that a replay finds them.
"""

import asyncio
import logging
import secrets
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace

from pentimento.domain.cache import CacheScope, ErasedCache, GrantBinding, image_key, latent_key, scope_digest, sign
from pentimento.domain.clock import Clock, SteadyClock
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import Attempt, CacheGrant, CapturedEntries, LatentSlot, ObjectReference
from pentimento.policies.cache_selection import keeps_image, kept_steps
from pentimento.policies.followed_cache import kind_of_run
from pentimento.rpc.watched_file import SharedKeys
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import EntryCommit, GrantedKey, GrantRecord, ObjectPin
from services.vectordb_gateway import metrics
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.entries.checks import (
    SHARED_POOL,
    check_attempt,
    check_captured,
    check_name,
    check_object,
    check_scope,
    check_start_kind,
    check_start_step,
    check_tenant_bytes,
)
from services.vectordb_gateway.entries.rules import PlannedCache
from services.vectordb_gateway.lookup.encoder import REPLACED_AFTER_S, EncoderGuard
from services.vectordb_gateway.settings import MAX_ANCESTOR_DEPTH
from services.vectordb_gateway.upkeep.indexing import Indexing
from services.vectordb_gateway.upkeep.store_calls import StoreThreads

logger = logging.getLogger(__name__)

# No retention is longer: a longer one is a mistake.
_LONGEST_S = 100 * 366 * 86_400.0


class Pinning:
    """How much and how long a tenant may pin is the frontdoor's to say, which knows what it promised."""

    def __init__(self, ledger: CacheLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def pin(self, tenant: str, request_id: str, reference: ObjectReference, duration_s: float) -> float:
        """Keep the object for so long from now, and return until when in seconds since 1970. Raises InvalidArgument,
        NotFound ANCESTOR_GONE."""
        check_name("tenant", tenant)
        check_name("request_id", request_id)
        check_name("object.key", reference.key)
        check_object("object", reference)
        if not 0 < duration_s <= _LONGEST_S:
            raise InvalidArgument.of("duration_ms", f"must be above 0 and at most {_LONGEST_S * 1000:.0f}")
        expires_at = self._clock.wall() + duration_s
        wanted = ObjectPin(tenant, request_id, reference, expires_at)
        await asyncio.wrap_future(self._ledger.pin(wanted, SHARED_POOL))
        return expires_at

    async def unpin(self, tenant: str, request_id: str) -> None:
        """End the pins of the tenant's request. Raises InvalidArgument."""
        check_name("tenant", tenant)
        check_name("request_id", request_id)
        await asyncio.wrap_future(self._ledger.unpin(tenant, request_id))

    async def forget_tenant(self, tenant: str) -> ErasedCache:
        """Delete the tenant's entries, grants and pins; the next round deletes vectors and objects, which are left
        until then. Raises InvalidArgument."""
        check_name("tenant", tenant)
        while await asyncio.wrap_future(self._ledger.forget_tenant(tenant)):
            pass
        return await asyncio.to_thread(self._ledger.erased, tenant)


@dataclass(frozen=True)
class Reservation:
    """A grant, or why there is none."""

    grant: CacheGrant | None
    reason: str


@dataclass(frozen=True)
class ReservedRun:
    """A run that asks for a grant: from `start_step` on, 0 for from noise, with `ancestor_depth` ancestors in a row.

    `keeps_image`: an embedder of images can make its image findable. `start_kind`: noise, latent or image, empty if the
    caller does not say. `light`: for a stage of a cascade that another one may follow. `tenant_cache_bytes`: limit of
    the tenant's bytes in the cache from now on, None for no own limit.
    """

    start_step: int = 0
    ancestor_depth: int = 0
    keeps_image: bool = True
    start_kind: str = ""
    light: bool = False
    tenant_cache_bytes: int | None = None


# A commit takes milliseconds. A reservation waits no longer than a second, a commit some seconds.
_RESERVES_WITHIN_S = 1.0
_WRITES_WITHIN_S = 6.0
_READING_THREADS = 2


class EntryWriting:
    """Writes in order: objects before the ledger's row, the row before the index. A ledger that hangs takes no more
    calls: abandoned ones would pile up before it."""

    def __init__(
        self,
        ledger: CacheLedger,
        guard: EncoderGuard,
        indexing: Indexing,
        capacity: Capacity,
        planned: PlannedCache,
        grant_ttl_s: float,
        clock: SteadyClock,
        keys: SharedKeys | None = None,
    ) -> None:
        self._ledger = ledger
        self._guard = guard
        self._indexing = indexing
        self._capacity = capacity
        self._planned = planned
        self._grant_ttl_s = grant_ttl_s
        self._clock = clock
        self._keys = keys
        self._threads = StoreThreads(_READING_THREADS, "ledger")

    def close(self) -> None:
        """Release the threads."""
        self._threads.close()

    async def reserve(self, scope: CacheScope, attempt: Attempt, run: ReservedRun) -> Reservation:
        """Return a grant with keys for the latents and the image that the rules keep. Raises InvalidArgument."""
        check_scope(scope)
        check_attempt(attempt, scope)
        check_start_step(run.start_step, scope.num_inference_steps)
        check_start_kind(run.start_kind)
        check_tenant_bytes(run.tenant_cache_bytes)
        self._capacity.tenants.set(scope.tenant, run.tenant_cache_bytes)
        if run.ancestor_depth >= MAX_ANCESTOR_DEPTH:
            # It would stand before entries that serve, and never serve itself.
            return _refused(f"{run.ancestor_depth} ancestors in a row: its image is not reused")
        if run.start_step == scope.num_inference_steps:
            return _refused("the image is of the cache, unchanged")
        if refusal := self._planned.in_force.refusal(kind_of_run(run.start_kind, run.start_step), light=run.light):
            return _refused(refusal)
        rules = self._planned.rules.keeping(scope.model_digest, self._guard.digest())
        keys = [self._new_key(step) for step in kept_steps(scope.num_inference_steps, run.start_step, rules)]
        if run.keeps_image and keeps_image(run.start_step, rules):
            keys.append(self._new_key(None))
        if not keys:
            return _refused("no rule keeps anything of such a run")
        try:
            self._check_writes(_RESERVES_WITHIN_S)
            if refusal := await self._threads.run(self._capacity.refusal, scope.tenant):
                return _refused(refusal)
            return await self._grant(scope, attempt, keys)
        except PentimentoError as error:
            # A ledger that is full or away costs a cache entry, not an image.
            logger.warning("nothing reserved: %s", error.message)
            return _refused(error.message)

    async def commit(
        self,
        scope: CacheScope,
        attempt: Attempt,
        captured: CapturedEntries,
        text: Embedding,
        image: Embedding | None,
        ancestor_depth: int,
        repeat_key: str = "",
    ) -> str:
        """Return the entry's id, the same if repeated. The entry is durable, and findable unless the index is away.

        Raises InvalidArgument, NotFound (the grant is gone), FailedPrecondition (it is another attempt's),
        StoreUnavailable at once if the ledger hangs.
        """
        check_scope(scope)
        check_attempt(attempt, scope)
        check_name("grant_id", captured.grant_id)
        check_captured(captured, scope.num_inference_steps)
        encoders = self._guard.check_entry(text, image)
        self._check_writes(_WRITES_WITHIN_S)
        entry = EntryCommit(
            entry_id=str(uuid.uuid4()),
            captured=captured,
            tenant=scope.tenant,
            pool=_pool(scope),
            scope_digest=scope_digest(scope),
            compatibility_keys={
                None: image_key(scope),
                **{each.resume_step: latent_key(scope, each.resume_step) for each in captured.latents},
            },
            request_id=attempt.request_id,
            fencing_token=attempt.fencing_token,
            text_vector=text.values,
            image_vector=image.values if image is not None else None,
            ancestor_depth=ancestor_depth,
            created_at=self._clock.wall(),
            step_count=scope.num_inference_steps,
            repeat_key=repeat_key,
        )
        for encoder in self._guard.replacing(encoders):
            # Objects stay for readers that looked them up by the other space.
            await asyncio.wrap_future(self._ledger.replace_encoder(encoder, REPLACED_AFTER_S))
            self._guard.note_replaced(encoder)
        # A space is bound by its first vector. A refused commit must not bind it: no other encoder could enter then.
        entry_id = await asyncio.wrap_future(self._ledger.commit(entry, *encoders))
        self._guard.note_bound(*encoders)
        metrics.COMMITS.inc()
        await self._make_findable()
        return entry_id

    async def release(self, grant_id: str) -> None:
        """Give a grant back; a grant that is gone or committed stays unchanged. Raises StoreUnavailable at once if the
        ledger hangs: the grant expires by itself."""
        check_name("grant_id", grant_id)
        self._check_writes(_WRITES_WITHIN_S)
        if await asyncio.wrap_future(self._ledger.release(grant_id)):
            metrics.GRANTS.labels("released").inc()

    def _check_writes(self, within_s: float) -> None:
        if (stuck_s := self._ledger.writes_stuck_s) > within_s:
            raise StoreUnavailable("ledger", f"nothing was written for {stuck_s:.0f} s")

    async def _grant(self, scope: CacheScope, attempt: Attempt, keys: list[GrantedKey]) -> Reservation:
        record = GrantRecord(
            grant_id=secrets.token_hex(16),
            pool=_pool(scope),
            tenant=scope.tenant,
            scope_digest=scope_digest(scope),
            request_id=attempt.request_id,
            fencing_token=attempt.fencing_token,
            expires_at=self._clock.wall() + self._grant_ttl_s,
            keys=tuple(keys),
        )
        try:
            await asyncio.wrap_future(self._ledger.reserve(record))
        except asyncio.CancelledError:
            # No caller receives it. If the ledger has begun with it already, it would stay open until it expires.
            with suppress(StoreUnavailable):
                self._ledger.release(record.grant_id)
            raise
        metrics.GRANTS.labels("granted").inc()
        # Workers compare it with their own clocks.
        grant = _grant_of(record, self._grant_ttl_s, self._clock.wall_as_told())
        return Reservation(self._signed(grant, scope, attempt), "granted")

    def _signed(self, grant: CacheGrant, scope: CacheScope, attempt: Attempt) -> CacheGrant:
        """Sign the grant for this attempt and for images of this scope; unchanged without a key."""
        if self._keys is None:
            return grant
        binding = GrantBinding(
            scope.tenant,
            attempt.request_id,
            attempt.fencing_token,
            scope.model_digest,
            scope.width_px,
            scope.height_px,
            scope.num_inference_steps,
        )
        return replace(grant, signature=sign(self._keys()[0], grant, binding))

    async def _make_findable(self) -> None:
        try:
            await self._indexing.make_findable()
        except (PentimentoError, TimeoutError) as error:
            metrics.INDEX_FAILURES.inc()
            logger.warning("the entry will be indexed later: %s", str(error) or "the index is slow")

    def _new_key(self, resume_step: int | None) -> GrantedKey:
        return GrantedKey(f"cache/{self._ledger.cache_id}/{secrets.token_hex(16)}", resume_step)


def _refused(why: str) -> Reservation:
    metrics.GRANTS.labels("refused").inc()
    return Reservation(None, why)


def _pool(scope: CacheScope) -> str:
    return SHARED_POOL if scope.shared_pool else scope.tenant


def _grant_of(record: GrantRecord, ttl_s: float, now_s: float) -> CacheGrant:
    latents = tuple(LatentSlot(each.resume_step, each.key) for each in record.keys if each.resume_step is not None)
    image_key = next((each.key for each in record.keys if each.resume_step is None), "")
    expires_at_ms = round((now_s + ttl_s) * 1000)
    return CacheGrant(record.grant_id, latents, image_key, round(ttl_s * 1000), expires_at_ms=expires_at_ms)
