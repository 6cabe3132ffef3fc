"""Model the cache ledger's promises in memory, first in, first out, for comparison with a store."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pentimento.domain.cache import CacheHolding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger.cache.evictions import WhoGivesWay
from pentimento.stores.ledger.cache.records import (
    CachedEntry,
    CacheTotals,
    EntryCommit,
    EntryVectors,
    GrantRecord,
    HeldLatent,
    ObjectPin,
)

SHARED = "*shared*"
_MATCHED = ("tenant", "pool", "scope_digest", "request_id", "fencing_token")


@dataclass
class ModelObject:
    """Hold a granted key and, from the commit on, an entry's item under it. `delete_after` 0: its deletion runs."""

    grant_id: str
    step: int | None
    tenant: str = ""
    reference: ObjectReference | None = None
    sigma: float = 0.0
    compatibility_key: str = ""
    entry_id: str | None = None
    added: int = 0
    delete_after: float | None = None


@dataclass
class ModelEntry:
    commit: EntryCommit
    sequence: int
    is_live: bool = True
    is_indexed: bool = False


@dataclass
class CacheModel:
    """Answer each method as the ledger does. An error is returned."""

    sequence: int
    grants: dict[str, GrantRecord] = field(default_factory=dict)
    committed: dict[str, str] = field(default_factory=dict)
    entries: dict[str, ModelEntry] = field(default_factory=dict)
    objects: dict[str, ModelObject] = field(default_factory=dict)
    pins: dict[tuple[str, str, str], float] = field(default_factory=dict)
    added: int = 0

    def reserve(self, grant: GrantRecord) -> None:
        self.grants[grant.grant_id] = grant
        for granted in grant.keys:
            self.objects[granted.key] = ModelObject(grant.grant_id, granted.resume_step)

    def commit(self, commit: EntryCommit) -> str | PentimentoError:
        grant_id = commit.captured.grant_id
        grant = self.grants.get(grant_id)
        if grant is None:
            return NotFound("GRANT_GONE", "")
        if any(getattr(grant, name) != getattr(commit, name) for name in _MATCHED):
            return FailedPrecondition("GRANT_MISMATCH", "")
        if grant_id in self.committed:
            return self.committed[grant_id]
        wanted = [(latent.object, latent.resume_step, latent.sigma) for latent in commit.captured.latents]
        if commit.captured.image is not None:
            wanted.append((commit.captured.image, None, 0.0))  # type: ignore[arg-type]
        named = [(reference.key, step) for reference, step, _ in wanted]
        granted = {(each.key, each.resume_step) for each in grant.keys}
        if not named or len(set(named)) < len(named) or not set(named) <= granted:
            return InvalidArgument.of("entries", "")
        self.sequence += 1
        self.committed[grant_id] = commit.entry_id
        self.entries[commit.entry_id] = ModelEntry(commit, self.sequence)
        for key in [key for key, _ in granted - set(named)]:
            self.objects[key].delete_after = commit.created_at
        for reference, step, sigma in wanted:
            self.added += 1
            self.objects[reference.key] = ModelObject(
                grant_id,
                step,
                commit.tenant,
                reference,
                sigma,
                commit.compatibility_keys[step],
                commit.entry_id,
                self.added,
            )
        return commit.entry_id

    def release(self, grant_ids: Iterable[str], now: float) -> int:
        released = [each for each in grant_ids if each in self.grants and each not in self.committed]
        for grant_id in released:
            for granted in self.grants.pop(grant_id).keys:
                self.objects[granted.key].delete_after = now
        return len(released)

    def expire_grants(self, now: float) -> int:
        self.pins = {pin: until for pin, until in self.pins.items() if until > now}
        over = [grant.grant_id for grant in self.grants.values() if grant.expires_at <= now]
        count = self.release(over, now)
        for grant_id in over:
            self.grants.pop(grant_id, None)
            self.committed.pop(grant_id, None)
        return count

    def doom(self, entry_ids: Iterable[str], delete_after: float) -> int:
        doomed = [each for each in entry_ids if each in self.entries and self.entries[each].is_live]
        for entry_id in doomed:
            self.entries[entry_id].is_live = False
            for held in self.held_by(entry_id):
                held.delete_after = delete_after
        return len(doomed)

    def forget_tenant(self, tenant: str, now: float) -> int:
        theirs = {key for key, each in self.objects.items() if each.tenant == tenant}
        self.pins = {pin: until for pin, until in self.pins.items() if pin[0] != tenant and pin[2] not in theirs}
        self.release([grant.grant_id for grant in self.grants.values() if grant.tenant == tenant], now)
        doomed = self.doom([each for each, entry in self.entries.items() if entry.commit.tenant == tenant], now)
        for key in theirs:
            if (self.objects[key].delete_after or 0.0) > now:
                self.objects[key].delete_after = now
        return doomed

    def evict(self, who: WhoGivesWay, delete_after: float, new_after: int) -> int:
        count = 0
        while (tenant := who(self.holdings())) is not None:
            live = [entry for entry in self.entries.values() if entry.is_live and entry.commit.tenant == tenant]
            first = min(live, key=lambda entry: (entry.sequence > new_after, entry.sequence))
            count += self.doom([first.commit.entry_id], delete_after)
        return count

    def evict_items(self, who: WhoGivesWay, delete_after: float, new_after: int) -> int:
        count = 0
        while (tenant := who(self.holdings())) is not None:
            held = [each for each in self.held() if each.tenant == tenant]
            first = min(held, key=lambda each: (self._entry_of(each).sequence > new_after, each.added))
            entry = self._entry_of(first)
            first.entry_id, first.delete_after = None, delete_after
            left = self.held_by(entry.commit.entry_id)
            if first.compatibility_key not in {each.compatibility_key for each in left}:
                entry.is_indexed = False
            if not left:
                self.doom([entry.commit.entry_id], delete_after)
            count += 1
        return count

    def mark_indexed(self, taken: Sequence[EntryVectors]) -> None:
        for read in taken:
            entry = self.entries.get(read.entry_id)
            if entry is not None and self._keys_of(read.entry_id) == read.compatibility_keys:
                entry.is_indexed = True

    def pin(self, wanted: ObjectPin, now: float) -> PentimentoError | None:
        held = self.objects.get(wanted.object.key)
        place = (wanted.tenant, wanted.request_id, wanted.object.key)
        if held is None or held.reference != wanted.object or held.delete_after == 0.0:
            return NotFound("ANCESTOR_GONE", "")
        entry = self.entries.get(held.entry_id or "")
        is_shared = entry is not None and entry.commit.pool == SHARED
        has_pinned = any((tenant, key) == (wanted.tenant, wanted.object.key) for tenant, _, key in self.pins)
        if not (held.tenant == wanted.tenant or is_shared or has_pinned):
            return NotFound("ANCESTOR_GONE", "")
        self.pins = {pin: until for pin, until in self.pins.items() if until > now}
        self.pins[place] = wanted.expires_at
        return None

    def unpin(self, tenant: str, request_id: str) -> int:
        ended = [pin for pin in self.pins if pin[:2] == (tenant, request_id)]
        for pin in ended:
            del self.pins[pin]
        return len(ended)

    def claim_deletion(self, keys: Iterable[str], now: float) -> set[str]:
        self.pins = {pin: until for pin, until in self.pins.items() if until > now}
        claimed = {key for key in keys if self._is_due(key, now)}
        for key in claimed:
            self.objects[key].delete_after = 0.0
        return claimed

    def forget_entries(self, entry_ids: Iterable[str]) -> None:
        for entry_id in entry_ids:
            if entry_id in self.entries and not self.entries[entry_id].is_live:
                del self.entries[entry_id]

    def live_entry(self, entry_id: str) -> CachedEntry | None:
        entry = self.entries.get(entry_id)
        if entry is None or not entry.is_live:
            return None
        commit, held = entry.commit, self.held_by(entry_id)
        latents = tuple(
            HeldLatent(each.step, each.sigma, each.reference, each.compatibility_key)
            for each in sorted(held, key=lambda each: each.step or 0)
            if each.step is not None and each.reference is not None
        )
        image = next((each for each in held if each.step is None), None)
        found = CachedEntry(
            entry_id, commit.pool, commit.created_at, commit.ancestor_depth, latents, tenant=commit.tenant,
            request_id=commit.request_id, repeat_key=commit.repeat_key, is_seen=commit.image_vector is not None,
        )  # fmt: skip
        return found if image is None else replace(found, image=image.reference, image_key=image.compatibility_key)

    def unindexed(self) -> list[EntryVectors]:
        return [
            EntryVectors(
                entry.sequence,
                entry_id,
                entry.commit.pool,
                self._keys_of(entry_id),
                entry.commit.created_at,
                entry.commit.text_vector,
                entry.commit.image_vector,
            )
            for entry_id, entry in self.entries.items()
            if entry.is_live and not entry.is_indexed
        ]

    def totals(self) -> CacheTotals:
        held, holdings = self.held(), self.holdings().values()
        open_count = len(self.grants.keys() - self.committed.keys())
        size_bytes = sum(holding.size_bytes for holding in holdings)
        return CacheTotals(sum(holding.entry_count for holding in holdings), len(held), size_bytes, open_count)

    def holdings(self) -> dict[str, CacheHolding]:
        found: dict[str, CacheHolding] = {}
        for entry_id, entry in self.entries.items():
            if entry.is_live:
                before = found.get(entry.commit.tenant, CacheHolding(0, 0))
                size_bytes = sum(each.reference.size_bytes for each in self.held_by(entry_id) if each.reference)
                found[entry.commit.tenant] = CacheHolding(before.entry_count + 1, before.size_bytes + size_bytes)
        return found

    def held(self) -> list[ModelObject]:
        return [each for entry_id, entry in self.entries.items() if entry.is_live for each in self.held_by(entry_id)]

    def held_by(self, entry_id: str) -> list[ModelObject]:
        return [each for each in self.objects.values() if each.entry_id == entry_id]

    def deletable(self, now: float) -> set[str]:
        return {
            key for key, each in self.objects.items() if self._is_due(key, now) and each.entry_id not in self.entries
        }

    def kept_by_pins(self, now: float) -> set[ObjectReference | None]:
        doomed = {key: each for key, each in self.objects.items() if each.delete_after is not None}
        return {each.reference for key, each in doomed.items() if self._is_pinned(key, now)}

    def ids_where(self, holds: Callable[[ModelEntry], bool]) -> list[str]:
        return [entry_id for entry_id, entry in self.entries.items() if holds(entry)]

    def _entry_of(self, held: ModelObject) -> ModelEntry:
        assert held.entry_id is not None
        return self.entries[held.entry_id]

    def _keys_of(self, entry_id: str) -> tuple[str, ...]:
        return tuple(sorted({each.compatibility_key for each in self.held_by(entry_id)}))

    def _is_due(self, key: str, now: float) -> bool:
        delete_after = self.objects[key].delete_after if key in self.objects else None
        return delete_after is not None and delete_after <= now and not self._is_pinned(key, now)

    def _is_pinned(self, key: str, now: float) -> bool:
        return any(pinned == key and until > now for (_, _, pinned), until in self.pins.items())
