"""The deferral curve of a cascade, and what each policy must be told."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.plugins import POLICY_NAMES
from pentimento.policies.plan.inputs import Policy, hold_resident
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.policies.plan.many_models import ManyModels
from pentimento.policies.plan.mixture import MixturePolicy, ResidentMixture
from pentimento.policies.plan.registry import SERVING_POLICIES, CacheUse
from pentimento.policies.plan.settings import DeferralCurve, ServingSettings
from tests.unit.policies.plan.fleets import diffserve

CURVE = DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.2, 1.0))
FULL = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)
SIZES = (1, 2, 4, 8, 16, 32)
CASCADE = {"heavy", "light", "slo_s"}
WHAT_THEY_NEED = {
    "resident": set[str](),
    "diffserve": CASCADE,
    "modm": {"heavy", "small_models"},
    "resident-mixture": {"heavy", "small_models"},
    "joint": {"heavy", "small_models", "slo_s"},
    "many-models": set[str](),
}
# Cache, its rule, whether hits are cached, late ones dropped, batches planned.
WHAT_THEY_ARE = {
    "resident": (CacheUse.NONE, "fifo", True, True, False),
    "diffserve": (CacheUse.NONE, "fifo", True, True, True),
    "modm": (CacheUse.IMAGES, "fifo", True, False, True),
    "resident-mixture": (CacheUse.BOTH, "fifo", True, False, False),
    "joint": (CacheUse.BOTH, "lcbfu", False, True, True),
    "many-models": (CacheUse.NONE, "fifo", True, True, False),
}


@pytest.mark.parametrize(
    ("threshold", "share"), [(-1.0, 0.0), (0.0, 0.0), (0.25, 0.1), (0.5, 0.2), (0.75, 0.6), (1.0, 1.0), (2.0, 1.0)]
)
def test_curve_is_linear_between_points(threshold: float, share: float) -> None:
    assert CURVE.share(threshold) == pytest.approx(share)


@pytest.mark.parametrize(("quantile", "confidence"), [(0.1, 0.25), (0.6, 0.75), (1.0, 1.0)])
def test_a_confidence_is_drawn_by_the_curve(quantile: float, confidence: float) -> None:
    assert CURVE.confidence(quantile) == pytest.approx(confidence)


def test_a_curve_is_profiled_from_confidences() -> None:
    curve = DeferralCurve.of([0.5, 0.1, 0.9, 0.5], count=11)

    assert curve.thresholds == pytest.approx([index / 10 for index in range(11)])
    assert curve.shares == (0.0, 0.25, 0.25, 0.25, 0.25, 0.75, 0.75, 0.75, 0.75, 1.0, 1.0)


@pytest.mark.parametrize(
    ("thresholds", "shares"),
    [
        ((0.0,), (0.0,)),
        ((0.0, 1.0), (0.0, 0.5, 1.0)),
        ((0.0, 1.1), (0.0, 1.0)),
        ((-0.1, 1.0), (0.0, 1.0)),
        ((0.0, 1.0), (1.0, 0.0)),
        ((1.0, 0.0), (0.0, 1.0)),
    ],
)
def test_curve_refuses_invalid_points(thresholds: tuple[float, ...], shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"curve|ascend"):
        DeferralCurve(thresholds, shares)


def test_a_curve_of_no_confidences_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        DeferralCurve.of([])


@given(threshold=st.floats(0.0, 1.0), exponent=st.floats(0.2, 5.0))
def test_bent_curve_is_power_at_points(threshold: float, exponent: float) -> None:
    at = round(threshold * 200) / 200

    assert CURVE.bent(exponent).share(at) == pytest.approx(CURVE.share(at) ** exponent)


def test_an_unbent_curve_is_itself() -> None:
    assert CURVE.bent(1.0) is CURVE


@given(threshold=st.floats(0.1, 0.9), exponent=st.floats(0.3, 3.0))
def test_bend_towards_finds_exponent(threshold: float, exponent: float) -> None:
    observed = CURVE.share(threshold) ** exponent

    assert CURVE.bend_towards(threshold, observed) == pytest.approx(exponent)


@pytest.mark.parametrize(("threshold", "observed"), [(0.0, 0.5), (1.0, 0.5), (0.5, 0.0), (0.5, 1.0)])
def test_all_or_nothing_tells_no_exponent(threshold: float, observed: float) -> None:
    assert CURVE.bend_towards(threshold, observed) is None


@pytest.mark.parametrize(("share", "told"), [(0.203, 1.0), (0.5, 0.742), (0.0, 0.0), (1.0, 0.0)])
def test_tells_is_fisher_information(share: float, told: float) -> None:
    """s ln(s)^2 / (1 - s) over its largest value, 0.6476 at s = 0.203: 0.4805 at 0.5."""
    assert DeferralCurve().tells(share) == pytest.approx(told, abs=1e-3)


# The exponent before, the share observed at 0.5 (which tells 0.742), the certainty, the exponent after.
FOLLOWED = {
    "a fifth of the way": (1.0, 0.25, 1.0, 1.0 + 0.2 * 0.742 * 1.0),
    "half as far where half as certain": (1.0, 0.25, 0.5, 1.0 + 0.1 * 0.742 * 1.0),
    "back towards 1": (2.0, 0.5, 1.0, 2.0 - 0.2 * 0.742 * 1.0),
    "no further than 5": (1.0, 0.001, 1.0, 1.0 + 0.2 * 0.742 * 4.0),
    "no further than a fifth": (1.0, 0.99, 1.0, 1.0 - 0.2 * 0.742 * 0.8),
    "no share observed": (1.7, 0.0, 1.0, 1.7),
    "all observed": (1.7, 1.0, 1.0, 1.7),
}


def test_follow_moves_exponent_towards_observation() -> None:
    for name, (before, observed, certainty, after) in FOLLOWED.items():
        assert DeferralCurve().follow(before, 0.5, observed, certainty) == pytest.approx(after, abs=1e-3), name


def test_every_policy_has_a_row_here() -> None:
    assert SERVING_POLICIES.keys() == WHAT_THEY_NEED.keys() == WHAT_THEY_ARE.keys()
    assert tuple(SERVING_POLICIES) == POLICY_NAMES


@pytest.mark.parametrize("name", WHAT_THEY_ARE)
def test_policy_has_cache_and_drops_of_its_system(name: str) -> None:
    policy = SERVING_POLICIES[name](FULL)

    found = (policy.cache, policy.eviction, policy.cache_hits, policy.drops_late, policy.plans_batches)
    assert (policy.name, found) == (name, WHAT_THEY_ARE[name])


@pytest.mark.parametrize("name", WHAT_THEY_NEED)
def test_a_policy_that_lacks_a_field_says_which(name: str) -> None:
    """Each field is taken away alone; the light model is the only small one where no others are named."""
    full = replace(FULL, small=("tiny",))
    SERVING_POLICIES[name].check(full)

    named = set()
    for field in ("heavy", "light", "slo_s", "peak_per_s", "small_models"):
        absent = math.inf if field == "slo_s" else 0.0 if field == "peak_per_s" else ""
        needs_small = "small_models" in WHAT_THEY_NEED[name]
        changes = {"small": (), "light": ""} if field == "small_models" and needs_small else {field: absent}
        if field != "small_models" or needs_small:
            try:
                SERVING_POLICIES[name].check(replace(full, **changes))  # type: ignore[arg-type]
            except InvalidArgument as error:
                named.add(error.message.partition(":")[0])

    assert named == WHAT_THEY_NEED[name]


def test_a_cascade_of_one_model_is_none() -> None:
    with pytest.raises(InvalidArgument, match="light: must be another model"):
        SERVING_POLICIES["diffserve"].check(replace(FULL, light="sd15"))


def test_settings_defaults_follow_papers() -> None:
    found = ServingSettings(heavy="h")

    assert (found.discriminator_s, found.expected_per_s, found.peak_per_s, found.slo_s) == (0.0, 0.0, 0.0, math.inf)
    assert (found.fixed_threshold, found.overprovision, found.threshold_count) == (0.5, 1.05, 201)
    assert (found.demand_weight, found.step_count, found.hysteresis) == (pytest.approx(1 / 3.1), 50, 0.1)
    assert (found.batch_sizes, found.run_price) == ((1, 2, 4, 8, 16, 32), 0.002)
    assert (found.small_models, replace(found, light="l").small_models) == ((), ("l",))
    assert replace(found, light="l", small=("a", "b")).small_models == ("a", "b")


@pytest.mark.parametrize(
    ("name", "allocator"),
    [
        ("resident", hold_resident),
        ("diffserve", diffserve(FULL)),
        ("modm", MixturePolicy(FULL, 0.9)),
        ("resident-mixture", ResidentMixture(FULL)),
        ("joint", JointPolicy(FULL)),
        ("many-models", ManyModels(FULL)),
    ],
)
def test_policy_has_allocator_of_its_system(name: str, allocator: Policy) -> None:
    assert SERVING_POLICIES[name](FULL).allocator == allocator
