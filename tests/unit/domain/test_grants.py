"""A signature holds for one attempt and its grant, until it expires."""

from dataclasses import replace
from typing import Any

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


TEXTS = st.tuples(st.sampled_from(["tenant", "request_id", "model_digest"]), st.text())
NUMBERS = st.tuples(
    st.sampled_from(["fencing_token", "width_px", "height_px", "step_count"]), st.integers(0, 2**63 - 1)
)


@given(TEXTS | NUMBERS)
def test_check_grant_of_other_binding_is_refused(change: tuple[str, Any]) -> None:
    other = replace(BINDING, **dict([change]))

    assert refusal(binding=other) is (None if other == BINDING else GrantRefusal.NOT_OURS)


CHANGES: list[dict[str, Any]] = [
    {"grant_id": "another"},
    {"latents": (LatentSlot(5, "cache/a"),)},
    {"latents": (LatentSlot(5, "cache/b"), LatentSlot(10, "cache/a"))},
    {"latents": (LatentSlot(5, "cache/a"), LatentSlot(11, "cache/b"))},
    {"image_key": "cache/of-another-tenant"},
    {"expires_at_ms": 2_000_000},
    {"signature": b"x" * 32},
]


def test_check_grant_changed_or_unsigned_is_refused() -> None:
    assert [change for change in CHANGES if refusal(replace(GRANT, **change)) is not GrantRefusal.NOT_OURS] == []
    assert refusal(UNSIGNED) is GrantRefusal.UNSIGNED


def test_check_grant_ends_a_minute_after_its_time() -> None:
    assert refusal() is None
    assert refusal(wall_ms=1_000_000 + 60_000) is None
    assert refusal(wall_ms=1_000_000 + 60_001) is GrantRefusal.EXPIRED


def test_check_grant_takes_any_listed_key() -> None:
    by_old = replace(UNSIGNED, signature=sign(OLD_KEY, UNSIGNED, BINDING))

    assert check_grant((KEY, OLD_KEY), by_old, BINDING, 0) is None
    assert check_grant((KEY,), by_old, BINDING, 0) is GrantRefusal.NOT_OURS
    assert check_grant((), GRANT, BINDING, 0) is GrantRefusal.NOT_OURS
