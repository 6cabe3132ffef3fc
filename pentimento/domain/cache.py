"""Scopes and keys of cache entries, lookups with their answers, and signed grants. Mirrors pentimento.api.vectordb.v1.

Two keys, because latents and images are bound to different things. A latent is bound to everything that shaped it up to
its capture: model, VAE, scheduler, prediction type, size, guidance, negative prompt, steps, ControlNets with their
conditioning images, and the LoRAs in force by then. A final image is bound to its size and to the ControlNets and
conditioning images that it followed: any model may start from it (MoDM, 5.2). The tenant is no part of a key: the index
filters by tenant.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from pentimento.domain.generation import CacheGrant, Start

# Part of every key: entries of another format are never found.
CACHE_FORMAT_VERSION = 2
# How far the clocks of gateway and worker may differ.
CLOCK_SKEW_MS = 60_000
_GRANT_VERSION = "pentimento cache grant 1"


@dataclass(frozen=True)
class CacheScope:
    """Everything but prompt and seed that changes the image. A field forgotten here would serve a wrong image.

    `adapters_digest` names the LoRAs and their scales, empty for none; they take effect after `adapters_from_step`
    denoising steps. `conditioning_digest` names the ControlNets with their conditioning images, `control_digest` their
    scales and when they act; both are empty for none.
    """

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
    adapters_from_step: int = 0
    conditioning_digest: str = ""
    control_digest: str = ""
    shared_pool: bool = False

    @cached_property
    def key_of_plain_latents(self) -> str:
        """Return the key of latents that were captured before any adapter took effect. A lookup compares it with that
        of each latent that it finds."""
        return self._latent_digest("")

    @cached_property
    def key_of_adapted_latents(self) -> str:
        """Return the key of latents captured after adapters took effect."""
        return self._latent_digest(self.adapters_digest)

    def _latent_digest(self, adapters_digest: str) -> str:
        return _digest(
            "latent",
            self.model_digest,
            self.vae_digest,
            self.scheduler_digest,
            self.prediction_type,
            self.width_px,
            self.height_px,
            self.guidance_scale,
            self.negative_prompt,
            self.num_inference_steps,
            # Both or neither: without ControlNets the key stays equal to older keys.
            self.conditioning_digest + self.control_digest,
            adapters_digest,
        )


@dataclass(frozen=True)
class CacheHolding:
    """Entries of one tenant, including its entries in the shared pool."""

    entry_count: int
    size_bytes: int


def latent_key(scope: CacheScope, resume_step: int) -> str:
    """Return the hex digest that a latent of x_K, K = `resume_step`, is kept and found under. A latent captured
    before any adapter took effect is found by requests with other adapters or without."""
    return scope.key_of_adapted_latents if resume_step > scope.adapters_from_step else scope.key_of_plain_latents


def latent_keys(scope: CacheScope) -> tuple[str, ...]:
    """Return every key that a latent for this scope may have: that of its last step, and that of its first."""
    return tuple(dict.fromkeys((latent_key(scope, scope.num_inference_steps), latent_key(scope, 1))))


def image_key(scope: CacheScope) -> str:
    """Return the hex digest that a final image is kept and found under, the same for every model."""
    return _digest("image", scope.width_px, scope.height_px, scope.conditioning_digest)


def scope_digest(scope: CacheScope) -> str:
    """Return the hex digest over all fields: what a grant was made for, and what its commit must be of."""
    return _digest("scope", scope)


def _digest(kind: str, *parts: object) -> str:
    return hashlib.sha256(repr((CACHE_FORMAT_VERSION, kind, *parts)).encode()).hexdigest()


@dataclass(frozen=True)
class ErasedCache:
    """Count what a tenant's erasure deleted from the cache; `left_count`: entries that the index may still hold, and
    objects that the store may still have."""

    entry_count: int = 0
    latent_count: int = 0
    latent_bytes: int = 0
    image_count: int = 0
    image_bytes: int = 0
    vector_count: int = 0
    vector_bytes: int = 0
    left_count: int = 0


@dataclass(frozen=True)
class LookupCandidate:
    """A model that may serve the request, and the kinds of start that it would take.

    `reference_model_digest`: the model that would generate the request from noise; refined images keep a share of its
    quality. Empty for an unknown one.
    """

    scope: CacheScope
    latents: bool = True
    images: bool = True
    reference_model_digest: str = ""


@dataclass(frozen=True)
class Neighbour:
    """An entry near a prompt and compatible with its request, also where it is not near enough.

    `similarity` (cosine) is between the prompts, or between prompt and image (`by_image`). `resume_steps`: steps
    where the entry has a latent for the request. `request_id` as in Donor.
    """

    entry_id: str
    similarity: float
    by_image: bool
    resume_steps: tuple[int, ...] = ()
    ancestor_depth: int = 0
    created_at_ms: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class CandidateStart:
    """Where one candidate would start, and why. The similarities (cosine) are those of the nearest compatible entries,
    also where they were not near enough; None where nothing was searched or found. `hole_steps`: how many more it would
    save if the nearest entries held all K of the table. `trial`: for a miss, the start that a cell under test would
    allow; None without one."""

    start: Start
    reason: str
    text_similarity: float | None = None
    image_similarity: float | None = None
    hole_steps: int = 0
    trial: Start | None = None


@dataclass(frozen=True)
class LookupAnswer:
    """A start for each candidate, in their order. `search_skipped`: the index was not asked, the reasons say why."""

    starts: tuple[CandidateStart, ...]
    search_skipped: bool = False


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
    text = json.dumps([_GRANT_VERSION, allowed, attempt, picture])
    # A worker stores only what the gateway allowed (HMAC, RFC 2104).
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def check_grant(keys: Sequence[bytes], grant: CacheGrant, binding: GrantBinding, wall_ms: float) -> GrantRefusal | None:
    """None when one of the keys signed it for `binding` and it has not run out by `wall_ms`, give or take the skew."""
    if not grant.signature:
        return GrantRefusal.UNSIGNED
    if not any(hmac.compare_digest(sign(key, grant, binding), grant.signature) for key in keys):
        return GrantRefusal.NOT_OURS
    return GrantRefusal.EXPIRED if wall_ms > grant.expires_at_ms + CLOCK_SKEW_MS else None
