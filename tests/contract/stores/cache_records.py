"""Write entries with objects of ten bytes, and their uses, into cache ledgers."""

import struct
import uuid
from dataclasses import replace

from pentimento.domain.generation import CapturedEntries, CapturedLatent, ObjectReference
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.stores.ledger.cache.evictions import WhoGivesWay
from pentimento.stores.ledger.cache.grants import bind_encoder
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import EncoderBinding, EntryCommit, GrantedKey, GrantRecord
from pentimento.stores.ledger.cache.uses import UseBatch
from pentimento.stores.objects.store import refer_to

VECTOR = struct.pack("<2f", 1.0, 0.0)
STEPS = (5, 10, 15)
SIZE = 10
# Compatibility keys by resume step, for adapters that start after step 5.
KEYS = {5: "free", 10: "adapted", 15: "adapted", 25: "adapted", None: "image"}


def grant(name: str = "g1", steps: tuple[int | None, ...] = (5, 10), expires_at: float = 2000.0) -> GrantRecord:
    keys = tuple(GrantedKey(f"{name}/{step or 'image'}", step) for step in steps)
    return GrantRecord(name, "pool", "tenant", "scope", "r1", 7, expires_at, keys)


def reference(key: str) -> ObjectReference:
    return refer_to(key, bytes(SIZE))


def commit(name: str = "g1", steps: tuple[int, ...] = (5, 10), image: bool = False) -> EntryCommit:
    latents = tuple(CapturedLatent(step, step / 10, reference(f"{name}/{step}"), True) for step in steps)
    return EntryCommit(
        entry_id=str(uuid.uuid4()),
        captured=CapturedEntries(name, latents, reference(f"{name}/image") if image else None),
        tenant="tenant",
        pool="pool",
        scope_digest="scope",
        compatibility_keys=KEYS,
        request_id="r1",
        fencing_token=7,
        text_vector=VECTOR,
        image_vector=None,
        ancestor_depth=2,
        created_at=1000.0,
        step_count=50,
    )


def bind(ledger: CacheLedger, encoder: EncoderBinding) -> EncoderBinding:
    """Bind the ledger's cache as its first entry does, and return the binding."""
    return ledger._submit(lambda connection: bind_encoder(connection, encoder)).result()


def add(
    ledger: CacheLedger, name: str, steps: tuple[int, ...] = STEPS, tenant: str = "tenant", image: bool = False
) -> str:
    """Reserve and commit an entry, and return its id."""
    granted = grant(name, (*steps, *([None] if image else [])), expires_at=1e12)
    ledger.reserve(replace(granted, tenant=tenant)).result()
    return ledger.commit(replace(commit(name, steps, image), tenant=tenant)).result()


def live(ledger: CacheLedger, entry_ids: list[str]) -> set[str]:
    return {entry_id for entry_id in entry_ids if ledger.live_entry(entry_id) is not None}


def steps_of(ledger: CacheLedger, entry_id: str) -> list[int]:
    entry = ledger.live_entry(entry_id)
    return [] if entry is None else [latent.resume_step for latent in entry.latents]


def down_to(item_count: int, max_entry_count: int = 10**6) -> WhoGivesWay:
    return lambda held: gives_way(held, CacheLimits(max_entry_count, item_count * SIZE))


def uses(number: int, *keys: str, source: str = "gateway") -> UseBatch:
    return UseBatch(source, number, keys)
