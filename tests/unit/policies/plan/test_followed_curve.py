"""Follow f(t) of a cascade by counted confidences."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.fleet import CONFIDENCE_BINS
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.settings import DeferralCurve

CURVE = DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.2, 1.0))
EDGES = [number / CONFIDENCE_BINS for number in range(1, CONFIDENCE_BINS + 1)]


def counted(**parts: int) -> tuple[int, ...]:
    """Return counts by part: `p0=50` has fifty images up to 0.05."""
    counts = [0] * CONFIDENCE_BINS
    for part, count in parts.items():
        counts[int(part[1:])] = count
    return tuple(counts)


def binned(confidences: list[float]) -> tuple[int, ...]:
    parts = Counter(min(int(one * CONFIDENCE_BINS), CONFIDENCE_BINS - 1) for one in confidences)
    return tuple(parts[part] for part in range(CONFIDENCE_BINS))


@pytest.mark.parametrize("counts", [(), (0,) * CONFIDENCE_BINS])
def test_after_without_scores_keeps_measured_curve(counts: tuple[int, ...]) -> None:
    assert FollowedCurve(CURVE).after(counts) == FollowedCurve(CURVE)
    assert FollowedCurve(CURVE).followed is CURVE


def test_after_averages_profile_of_fifty_images_with_scores() -> None:
    """Fifty images below 0.05: half of the way from the profile to 1, everywhere."""
    curve = FollowedCurve(CURVE).after(counted(p0=50))

    shares = [curve.followed.share(edge) for edge in (0.05, 0.5, 0.75, 1.0)]
    assert shares == pytest.approx([(0.02 + 1) / 2, (0.2 + 1) / 2, (0.6 + 1) / 2, 1.0])
    assert curve.image_count == 100.0


def test_after_many_images_forgets_one_in_four_hundred() -> None:
    settled = FollowedCurve(CURVE).after(counted(p19=10_000))

    after = settled.after(counted(p0=100))

    assert settled.image_count == after.image_count == 400.0
    assert after.followed.share(0.5) - settled.followed.share(0.5) == pytest.approx(0.2, abs=1e-3)


@given(st.lists(st.integers(0, CONFIDENCE_BINS - 1), min_size=2, max_size=100))
def test_after_few_images_does_not_depend_on_rounds(parts: list[int]) -> None:
    once = FollowedCurve(CURVE).after(tuple(parts.count(part) for part in range(CONFIDENCE_BINS)))
    turns = FollowedCurve(CURVE)
    for part in parts:
        turns = turns.after(counted(**{f"p{part}": 1}))

    assert turns.shares == pytest.approx(once.shares)


def test_followed_keeps_shape_within_part() -> None:
    """Four fifths of the part's images are in its first half of the profile."""
    steep = DeferralCurve((0.0, 0.025, 0.05, 1.0), (0.0, 0.08, 0.1, 1.0))

    followed = FollowedCurve(steep).after(counted(p0=30, p19=20)).followed

    assert followed.share(0.05) == pytest.approx((0.1 + 0.6) / 2)
    assert followed.share(0.025) == pytest.approx(0.8 * 0.35)


def test_followed_is_linear_where_profile_has_no_images() -> None:
    none_below = DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.0, 1.0))

    followed = FollowedCurve(none_below).after(counted(p0=50)).followed

    assert followed.share(0.025) == pytest.approx(0.25)
    assert followed.share(0.05) == pytest.approx(0.5)


# The share of images that drift to there, by their confidence in the profile.
DRIFTS = {
    "a fifth more": lambda confidence, rng: min(confidence + 0.2, 1.0),
    "a fifth less": lambda confidence, rng: max(confidence - 0.2, 0.0),
    "all near the middle": lambda confidence, rng: 0.4 + 0.2 * confidence,
    "two kinds of prompts": lambda confidence, rng: rng.choice([0.1 * confidence, 1.0 - 0.1 * confidence]),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_followed_is_within_a_twentieth_of_drifted_scores(drift: str) -> None:
    rng = Random(3)
    drifted = [DRIFTS[drift](CURVE.confidence(rng.random()), rng) for _ in range(2_000)]
    curve = FollowedCurve(CURVE)
    for first in range(0, len(drifted), 40):
        curve = curve.after(binned(drifted[first : first + 40]))

    realised = [sum(one <= edge for one in drifted) / len(drifted) for edge in EDGES]
    gaps = {
        name: max(abs(found.share(edge) - share) for edge, share in zip(EDGES, realised, strict=True))
        for name, found in (("followed", curve.followed), ("measured", CURVE))
    }
    assert gaps["followed"] <= 0.05 < 0.15 <= gaps["measured"]


@given(st.lists(st.lists(st.integers(0, 40), min_size=CONFIDENCE_BINS, max_size=CONFIDENCE_BINS), max_size=5))
def test_followed_is_a_curve_with_equal_ends(rounds: list[list[int]]) -> None:
    """DeferralCurve itself rejects one that descends or leaves 0..1."""
    curve = FollowedCurve(CURVE)
    for counts in rounds:
        curve = curve.after(counts)

    assert (curve.followed.share(0.0), curve.followed.share(1.0)) == (0.0, pytest.approx(1.0))


def test_reported_has_both_curves_by_part() -> None:
    found = FollowedCurve(CURVE).after(counted(p0=50)).reported("light>heavy")

    assert (found.cascade, found.thresholds) == ("light>heavy", pytest.approx(EDGES))
    assert (found.shares[9], found.measured_shares[9]) == pytest.approx((0.6, 0.2))
