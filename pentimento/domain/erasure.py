"""Erasures: the deletion of all data of a tenant, and the receipt of it. Times are wall-clock seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pentimento.domain.cache import ErasedCache

# A receipt has each kind, also without any.
KINDS = ("requests", "results", "inputs", "compared_pairs")
CACHE_KINDS = ("cache_entries", "cache_latents", "cache_images", "cache_vectors")
RECEIPT_FORM = "pentimento.erasure/1"
# No erasure deletes these, with the reason.
KEPT: Mapping[str, str] = {
    "record": "name, identity, times and this receipt of the tenant: the identity is never used again",
    "usage": "counters by the hour for the bill, without prompts or images; deleted after 400 days",
    "audit log": "who changed tenants, keys and models; it contains no prompts and no images",
    "models and LoRAs": "operators upload them, for every tenant",
    "quarantine": "the last objects whose bytes were corrupt, at most 64, for inspection",
    "copies outside the stores": "backups, recordings of effects, delivered images and webhooks",
}


class ErasureState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True)
class ErasedKind:
    """Count deleted things of one kind, and their bytes."""

    kind: str
    count: int
    size_bytes: int = 0


@dataclass(frozen=True)
class Erasure:
    """Describe the deletion of a tenant's data. `tenant_id` is never used again. `receipt`: signed JSON, "" until it is
    done. `waits_for`: "" for nothing."""

    tenant: str
    tenant_id: str
    state: ErasureState
    deleted_at: float
    began_at: float | None = None
    finished_at: float | None = None
    deleted: tuple[ErasedKind, ...] = ()
    receipt: str = ""
    waits_for: str = ""


def cache_kinds(erased: ErasedCache) -> tuple[ErasedKind, ...]:
    """Return the data deleted from the cache, by kind."""
    counts = (erased.entry_count, erased.latent_count, erased.image_count, erased.vector_count)
    sizes = (0, erased.latent_bytes, erased.image_bytes, erased.vector_bytes)
    return tuple(map(ErasedKind, CACHE_KINDS, counts, sizes))


def receipt_of(erasure: Erasure, finished_at: float, where: Mapping[str, str]) -> dict[str, Any]:
    """Return the receipt of an erasure that has deleted everything. `where`: the frontdoor and its stores."""
    return {
        "form": RECEIPT_FORM,
        "tenant": erasure.tenant,
        "tenant_id": erasure.tenant_id,
        **where,
        "deleted_at": _text(erasure.deleted_at),
        "began_at": _text(erasure.began_at if erasure.began_at is not None else finished_at),
        "finished_at": _text(finished_at),
        "deleted": _documents(erasure.deleted),
        "kept": [{"what": what, "why": why} for what, why in KEPT.items()],
    }


def _documents(kinds: Sequence[ErasedKind]) -> list[dict[str, Any]]:
    found = dict.fromkeys((*KINDS, *CACHE_KINDS), ErasedKind("", 0)) | {one.kind: one for one in kinds}
    return [{"kind": kind, "count": one.count, "bytes": one.size_bytes} for kind, one in found.items()]


def _text(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
