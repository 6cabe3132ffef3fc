"""A signature holds for one attempt, what it was granted, and as long as that."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.cache import GrantBinding, GrantRefusal, check_grant, sign
from pentimento.domain.generation import CacheGrant, LatentSlot

KEY, OLD_KEY = b"k" * 32, b"o" * 32
BINDING = GrantBinding("acme", "request-1", 3, "sha256:model", 512, 768, 50)
UNSIGNED = CacheGrant("grant", (LatentSlot(5, "cache/a"), LatentSlot(10, "cache/b")), "cache/c", 1000, 1_000_000)
GRANT = replace(UNSIGNED, signature=sign(KEY, UNSIGNED, BINDING))


def refusal(grant: CacheGrant = GRANT, binding: GrantBinding = BINDING, wall_ms: float = 999_999) -> Any:
    return check_grant((KEY,), grant, binding, wall_ms)


def test_the_attempt_that_it_was_signed_for_may_use_it() -> None:
    assert refusal() is None


@given(st.sampled_from(["tenant", "request_id", "model_digest"]), st.text())
def test_no_other_tenant_request_or_model_may(name: str, value: str) -> None:
    other = replace(BINDING, **{name: value})  # type: ignore[arg-type]

    assert refusal(binding=other) is (None if other == BINDING else GrantRefusal.NOT_OURS)


@given(st.sampled_from(["fencing_token", "width_px", "height_px", "step_count"]), st.integers(0, 2**63 - 1))
def test_no_other_attempt_size_or_number_of_steps_may(name: str, value: int) -> None:
    other = replace(BINDING, **{name: value})  # type: ignore[arg-type]

    assert refusal(binding=other) is (None if other == BINDING else GrantRefusal.NOT_OURS)


@pytest.mark.parametrize(
    "change",
    [
        {"grant_id": "another"},
        {"latents": (LatentSlot(5, "cache/a"),)},
        {"latents": (LatentSlot(5, "cache/b"), LatentSlot(10, "cache/a"))},
        {"latents": (LatentSlot(5, "cache/a"), LatentSlot(11, "cache/b"))},
        {"image_key": "cache/of-another-tenant"},
        {"expires_at_ms": 2_000_000},
    ],
)
def test_a_grant_that_was_changed_is_not_the_gateways(change: dict[str, Any]) -> None:
    assert refusal(replace(GRANT, **change)) is GrantRefusal.NOT_OURS


def test_a_grant_without_a_signature_is_told_from_a_wrong_one() -> None:
    assert refusal(UNSIGNED) is GrantRefusal.UNSIGNED
    assert refusal(replace(GRANT, signature=b"x" * 32)) is GrantRefusal.NOT_OURS


def test_it_ends_a_minute_after_its_time_whatever_the_clocks() -> None:
    assert refusal(wall_ms=1_000_000 + 60_000) is None
    assert refusal(wall_ms=1_000_000 + 60_001) is GrantRefusal.EXPIRED


def test_while_keys_are_changed_both_are_believed_and_without_any_nobody() -> None:
    by_old = replace(UNSIGNED, signature=sign(OLD_KEY, UNSIGNED, BINDING))

    assert check_grant((KEY, OLD_KEY), by_old, BINDING, 0) is None
    assert check_grant((KEY,), by_old, BINDING, 0) is GrantRefusal.NOT_OURS
    assert check_grant((), GRANT, BINDING, 0) is GrantRefusal.NOT_OURS
