"""Scopes and keys of cache entries: which entries a request may use.

Two keys, because latents and images are bound to different things. A latent is bound to everything that shaped it up to
its capture: model, VAE, scheduler, prediction type, size, guidance, negative prompt, steps, ControlNets with their
conditioning images, and the LoRAs in force by then. A final image is bound to its size and to the ControlNets and
conditioning images that it followed: any model may start from it (MoDM, 5.2). The tenant is no part of a key: the index
filters by tenant.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property


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


# Part of every key: entries of another format are never found.
CACHE_FORMAT_VERSION = 2


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
