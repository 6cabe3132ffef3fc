"""Whose cache entries, and which are compatible."""

import hashlib
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class CacheScope:
    """Everything but prompt and seed that changes the picture. A field forgotten here would serve a wrong picture."""

    tenant: str
    model_digest: str
    vae_digest: str
    scheduler_digest: str
    prediction_type: str
    width_px: int
    height_px: int
    guidance_scale: float
    negative_prompt: str
    num_inference_steps: int
    adapters_digest: str = ""
    shared_pool: bool = False


@dataclass(frozen=True)
class CacheHolding:
    """What one tenant's entries are, those that it gave to the shared pool included."""

    entry_count: int
    size_bytes: int


# Part of every key: entries of another format are never found.
CACHE_FORMAT_VERSION = 1


def compatibility_key(scope: CacheScope) -> str:
    """Hex digest over all fields but the tenant and its pool, which the index filters by themselves."""
    fields = astuple(scope)[1:-1]
    return hashlib.sha256(repr((CACHE_FORMAT_VERSION, *fields)).encode()).hexdigest()
