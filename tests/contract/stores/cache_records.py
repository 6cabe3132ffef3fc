"""What tests write into cache ledgers."""

import struct
import uuid

from pentimento.domain.generation import CapturedEntries, CapturedLatent, ObjectReference
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import (
    EncoderBinding,
    EntryCommit,
    GrantedKey,
    GrantRecord,
)
from pentimento.stores.ledger.cache_writes import bind_encoder
from pentimento.stores.objects.store import refer_to

VECTOR = struct.pack("<2f", 1.0, 0.0)
# By resume step, as a run whose adapters took effect after step 5 has them.
KEYS = {5: "free", 10: "adapted", 15: "adapted", None: "image"}


def grant(name: str = "g1", steps: tuple[int | None, ...] = (5, 10), expires_at: float = 2000.0) -> GrantRecord:
    keys = tuple(GrantedKey(f"cache/{name}/{step or 'image'}", step) for step in steps)
    return GrantRecord(name, "pool", "tenant", "scope", "r1", 7, expires_at, keys)


def reference(key: str, size: int = 10) -> ObjectReference:
    return refer_to(key, bytes(size))


def commit(name: str = "g1", steps: tuple[int, ...] = (5, 10), image: bool = False, size: int = 10) -> EntryCommit:
    latents = tuple(CapturedLatent(step, step / 10, reference(f"cache/{name}/{step}", size), True) for step in steps)
    captured = CapturedEntries(name, latents, reference(f"cache/{name}/image", size) if image else None)
    return EntryCommit(
        entry_id=str(uuid.uuid4()),
        captured=captured,
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
    """Bind the ledger's cache as its first entry does; the binding in force."""
    return ledger._submit(lambda connection: bind_encoder(connection, encoder)).result()


def add(ledger: CacheLedger, name: str, steps: tuple[int, ...] = (5, 10), size: int = 10) -> str:
    ledger.reserve(grant(name, steps)).result()
    return ledger.commit(commit(name, steps, size=size)).result()


def live(ledger: CacheLedger, entry_ids: list[str]) -> set[str]:
    return {entry_id for entry_id in entry_ids if ledger.live_entry(entry_id) is not None}
