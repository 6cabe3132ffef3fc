"""Refuse bad requests before any store is touched."""

import math
import re
from collections.abc import Sequence

from pentimento.domain.cache import CacheScope, LookupCandidate
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt, CapturedEntries, ObjectReference
from pentimento.domain.online_quality import ComparedHit
from pentimento.domain.tenants import GREATEST_BYTES
from pentimento.policies.plan.entry import STARTS

# The pool that tenants may opt into; no tenant can be called so.
SHARED_POOL = "*shared*"
MAX_STEP_COUNT = 10_000
MAX_SIZE_PX = 65_536
MAX_CANDIDATE_COUNT = 16
_MAX_TOKEN = 2**63 - 1
# A TiB. A worker's word for it is added up in 64 bits, with those of all other objects.
_MAX_OBJECT_BYTES = 2**40
_MAX_NAME_LENGTH = 256
# The cosine of two float32 vectors of length 1, with their rounding.
_MAX_COSINE = 1.0001
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def check_scope(scope: CacheScope) -> None:
    """Raises InvalidArgument unless the scope names its tenant and its entries in full."""
    if scope.tenant == SHARED_POOL:
        raise InvalidArgument.of("scope.tenant", f"must not be {SHARED_POOL!r}")
    for name in ("tenant", "model_digest", "vae_digest", "scheduler_digest", "prediction_type"):
        check_name(f"scope.{name}", getattr(scope, name))
    for name, limit in (("width_px", MAX_SIZE_PX), ("height_px", MAX_SIZE_PX), ("num_inference_steps", MAX_STEP_COUNT)):
        value = getattr(scope, name)
        if not 1 <= value <= limit:
            raise InvalidArgument.of(f"scope.{name}", f"must be between 1 and {limit}, got {value}")
    if not math.isfinite(scope.guidance_scale):
        raise InvalidArgument.of("scope.guidance_scale", f"must be finite, got {scope.guidance_scale}")
    if scope.adapters_from_step > scope.num_inference_steps:
        steps = f"{scope.num_inference_steps} (num_inference_steps)"
        raise InvalidArgument.of("scope.adapters_from_step", f"must be at most {steps}, got {scope.adapters_from_step}")


def check_candidates(candidates: Sequence[LookupCandidate]) -> None:
    """Raises InvalidArgument unless they are few, complete, and of one tenant and pool."""
    if not 1 <= len(candidates) <= MAX_CANDIDATE_COUNT:
        raise InvalidArgument.of("candidates", f"must be 1 to {MAX_CANDIDATE_COUNT}, got {len(candidates)}")
    for candidate in candidates:
        check_scope(candidate.scope)
        if candidate.reference_model_digest:
            check_name("candidates.reference_model_digest", candidate.reference_model_digest)
    if len({pools_of(candidate.scope) for candidate in candidates}) > 1:
        raise InvalidArgument.of("candidates.scope", "must all name the same tenant and the same shared_pool")


def pools_of(scope: CacheScope) -> tuple[str, ...]:
    """Return the pools that the scope may read."""
    return (scope.tenant, SHARED_POOL) if scope.shared_pool else (scope.tenant,)


def check_quality(quality: float | None) -> None:
    if quality is not None and not 0 <= quality <= 1:
        raise InvalidArgument.of("quality", f"must be between 0 and 1, got {quality}")


def check_noise_s(noise_s: float | None) -> None:
    """Check the device seconds of an image from noise. Raises InvalidArgument unless finite and above 0; None is
    unknown."""
    if noise_s is not None and not 0 < noise_s < math.inf:
        raise InvalidArgument.of("noise_s", f"must be above 0 and finite, got {noise_s}")


def check_attempt(attempt: Attempt, scope: CacheScope) -> None:
    """Raises InvalidArgument unless the attempt can own a grant in that scope."""
    check_name("attempt.request_id", attempt.request_id)
    if attempt.tenant != scope.tenant:
        raise InvalidArgument.of("attempt.tenant", "must be the scope's tenant")
    if not 0 <= attempt.fencing_token <= _MAX_TOKEN:
        raise InvalidArgument.of("attempt.fencing_token", f"must be between 0 and {_MAX_TOKEN}")


def check_start_step(start_step: int, step_count: int) -> None:
    """Raises InvalidArgument for a start outside of the schedule; 0 is a start from noise, `step_count` a stored image
    that is the answer."""
    if not 0 <= start_step <= step_count:
        raise InvalidArgument.of("start_step", f"must be between 0 and {step_count}, got {start_step}")


def check_tenant_bytes(most_bytes: int | None) -> None:
    """Raises InvalidArgument for a bound that no ledger could keep; None is none."""
    if most_bytes is not None and most_bytes > GREATEST_BYTES:
        raise InvalidArgument.of("tenant_cache_bytes", f"must be at most {GREATEST_BYTES}, got {most_bytes}")


def check_start_kind(kind: str) -> None:
    """Raises InvalidArgument for a kind of start that plans do not know; empty stands for an unknown one."""
    if kind and kind not in STARTS:
        raise InvalidArgument.of("start_kind", f"must be {', '.join(STARTS)} or empty, got {kind!r:.40}")


def check_captured(captured: CapturedEntries, step_count: int) -> None:
    """Raises InvalidArgument unless the captured entries could be resumed from."""
    for latent in captured.latents:
        if not 1 <= latent.resume_step < step_count:
            steps = f"between 1 and {step_count - 1}"
            raise InvalidArgument.of("entries.latents.resume_step", f"must be {steps}, got {latent.resume_step}")
        if not (math.isfinite(latent.sigma) and latent.sigma >= 0):
            raise InvalidArgument.of("entries.latents.sigma", f"must be finite and not negative, got {latent.sigma}")
        check_object("entries.latents.object", latent.object)
    if captured.image is not None:
        check_object("entries.image", captured.image)


def check_compared_hit(seen: ComparedHit) -> None:
    """Check a comparison of a hit with its image from noise. Raises InvalidArgument unless it has a hit and the cosines
    of both images."""
    for name in ("request_id", "model_digest", "reference_model_digest", "encoder_digest"):
        check_name(name, getattr(seen, name))
    if not 1 <= seen.step_count <= MAX_STEP_COUNT:
        raise InvalidArgument.of("step_count", f"must be between 1 and {MAX_STEP_COUNT}, got {seen.step_count}")
    if not 1 <= seen.skipped_steps <= seen.step_count:
        steps = f"between 1 and {seen.step_count}"
        raise InvalidArgument.of("skipped_steps", f"must be {steps}, got {seen.skipped_steps}")
    for name in ("similarity", "quality", "scratch_quality"):
        value = getattr(seen, name)
        if not abs(value) <= _MAX_COSINE:
            raise InvalidArgument.of(name, f"must be between -1 and 1, got {value}")


def check_name(field: str, value: str) -> None:
    """Raises InvalidArgument unless `value` is 1 to 256 characters without NUL."""
    if not value or len(value) > _MAX_NAME_LENGTH or "\0" in value:
        found = "none" if not value else f"{len(value)} characters"
        raise InvalidArgument.of(field, f"must be 1 to {_MAX_NAME_LENGTH} characters without NUL, got {found}")


def check_object(field: str, reference: ObjectReference) -> None:
    """Check that digest and size could be an object's. Raises InvalidArgument."""
    if not _DIGEST.fullmatch(reference.digest):
        raise InvalidArgument.of(f"{field}.digest", "must be sha256: and 64 hexadecimal digits")
    if not 1 <= reference.size_bytes <= _MAX_OBJECT_BYTES:
        limits = f"must be between 1 and {_MAX_OBJECT_BYTES}"
        raise InvalidArgument.of(f"{field}.size_bytes", f"{limits}, got {reference.size_bytes}")
