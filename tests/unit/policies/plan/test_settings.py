"""Test deferral curves of a cascade, and each policy's required settings."""

import math
from dataclasses import replace

import pytest

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
def test_confidence_is_drawn_by_the_curve(quantile: float, confidence: float) -> None:
    assert CURVE.confidence(quantile) == pytest.approx(confidence)


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


def test_every_policy_has_a_row_here() -> None:
    assert SERVING_POLICIES.keys() == WHAT_THEY_NEED.keys() == WHAT_THEY_ARE.keys()
    assert tuple(SERVING_POLICIES) == POLICY_NAMES


@pytest.mark.parametrize("name", WHAT_THEY_ARE)
def test_policy_has_cache_and_drops_of_its_system(name: str) -> None:
    policy = SERVING_POLICIES[name](FULL)

    found = (policy.cache, policy.eviction, policy.cache_hits, policy.drops_late, policy.plans_batches)
    assert (policy.name, found) == (name, WHAT_THEY_ARE[name])


@pytest.mark.parametrize("name", WHAT_THEY_NEED)
def test_policy_with_missing_field_names_it(name: str) -> None:
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


def test_cascade_of_one_model_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="light: must be another model"):
        SERVING_POLICIES["diffserve"].check(replace(FULL, light="sd15"))


def test_settings_defaults_follow_papers() -> None:
    found = ServingSettings(heavy="h")

    assert (found.discriminator_s, found.expected_per_s, found.peak_per_s, found.slo_s) == (0.0, 0.0, 0.0, math.inf)
    assert (found.fixed_threshold, found.overprovision) == (0.5, 1.05)
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
