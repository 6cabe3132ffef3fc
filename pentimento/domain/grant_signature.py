"""Signatures of grants: a worker stores only what the gateway allowed (HMAC, RFC 2104)."""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pentimento.domain.generation import CacheGrant

# How far the clocks of gateway and worker may differ.
CLOCK_SKEW_MS = 60_000
_VERSION = "pentimento cache grant 1"


@dataclass(frozen=True)
class GrantBinding:
    """The attempt that a grant belongs to, and the images that it covers."""

    tenant: str
    request_id: str
    fencing_token: int
    model_digest: str
    width_px: int
    height_px: int
    step_count: int


class GrantRefusal(Enum):
    """Why nothing is stored under a grant."""

    UNSIGNED = "unsigned"
    NOT_OURS = "not_ours"
    EXPIRED = "expired"


def sign(key: bytes, grant: CacheGrant, binding: GrantBinding) -> bytes:
    """Return the signature over everything that the grant allows, and its binding; its own `signature` aside."""
    slots = [[slot.resume_step, slot.key] for slot in grant.latents]
    allowed = [grant.grant_id, slots, grant.image_key, grant.expires_at_ms]
    attempt = [binding.tenant, binding.request_id, binding.fencing_token]
    picture = [binding.model_digest, binding.width_px, binding.height_px, binding.step_count]
    text = json.dumps([_VERSION, allowed, attempt, picture])
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def check_grant(keys: Sequence[bytes], grant: CacheGrant, binding: GrantBinding, wall_ms: float) -> GrantRefusal | None:
    """None when one of the keys signed it for `binding` and it has not run out by `wall_ms`, give or take the skew."""
    if not grant.signature:
        return GrantRefusal.UNSIGNED
    if not any(hmac.compare_digest(sign(key, grant, binding), grant.signature) for key in keys):
        return GrantRefusal.NOT_OURS
    return GrantRefusal.EXPIRED if wall_ms > grant.expires_at_ms + CLOCK_SKEW_MS else None
