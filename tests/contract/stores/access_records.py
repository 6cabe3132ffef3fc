"""Entries of three latents of ten bytes, and uses of them, for tests of what leaves a cache first."""

import struct
import uuid

from pentimento.domain.generation import CapturedEntries, CapturedLatent
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.stores.ledger.cache_access import UseBatch
from pentimento.stores.ledger.cache_evictions import WhoGivesWay
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import EntryCommit, GrantedKey, GrantRecord
from pentimento.stores.objects.store import refer_to

VECTOR = struct.pack("<2f", 1.0, 0.0)
STEPS = (5, 10, 15)
SIZE = 10


def add(
    ledger: CacheLedger,
    name: str,
    steps: tuple[int, ...] = STEPS,
    tenant: str = "t",
    image: bool = False,
    image_key: str = "key",
) -> str:
    keys = [GrantedKey(f"{name}/{step}", step) for step in steps] + [GrantedKey(f"{name}/image", None)] * image
    ledger.reserve(GrantRecord(name, tenant, tenant, "scope", "r", 1, 1e12, tuple(keys))).result()
    latents = tuple(CapturedLatent(step, 0.5, refer_to(f"{name}/{step}", bytes(SIZE)), True) for step in steps)
    commit = EntryCommit(
        entry_id=f"{name}-{uuid.uuid4()}",
        captured=CapturedEntries(name, latents, refer_to(f"{name}/image", bytes(SIZE)) if image else None),
        tenant=tenant,
        pool=tenant,
        scope_digest="scope",
        compatibility_keys={step: "key" for step in steps} | {None: image_key},
        request_id="r",
        fencing_token=1,
        text_vector=VECTOR,
        image_vector=None,
        ancestor_depth=0,
        created_at=1.0,
        step_count=50,
    )
    return ledger.commit(commit).result()


def steps_of(ledger: CacheLedger, entry_id: str) -> list[int]:
    entry = ledger.live_entry(entry_id)
    return [] if entry is None else [latent.resume_step for latent in entry.latents]


def down_to(item_count: int, max_entry_count: int = 10**6) -> WhoGivesWay:
    return lambda held: gives_way(held, CacheLimits(max_entry_count, item_count * SIZE))


def uses(number: int, *keys: str, source: str = "gateway") -> UseBatch:
    return UseBatch(source, number, keys)
