"""Compare the learnt quality of light images and hits with values computed by hand."""

from dataclasses import replace

import pytest

from pentimento.domain.demand import KeptQuality, added_up, kept_share
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.joint.forecast import DemandForecast
from pentimento.policies.plan.joint.policy import JointMemory, JointPolicy
from pentimento.policies.plan.joint.quality import LearntLine, LearntQuality
from pentimento.policies.plan.settings import DeferralCurve, ModelQuality, ServingSettings
from tests.unit.policies.plan.fleets import context, decide

CURVE = DeferralCurve()
SETTINGS = ServingSettings(
    heavy="sd15",
    light="turbo",
    slo_s=5.0,
    qualities=(ModelQuality("sd15", 1.0), ModelQuality("turbo", 0.84, 0.32, 0.95 / 0.84)),
)


def all_kept(count: int, share: float) -> KeptQuality:
    return KeptQuality(count, count * share, count * share * share)


def seen(*halves: KeptQuality, now_s: float = 0.0) -> LearntQuality:
    asked = PlanInput(now_s, (), (ModelDemand("turbo", 1.0, compared=halves),))
    return LearntQuality.empty(SETTINGS).seen(asked, SETTINGS, CURVE)


def test_estimate_without_comparisons_is_profile_less_its_error() -> None:
    """The error is that of 50 images with deviation 0.2, evenly spread: 0.2 / sqrt(50 / 12)."""
    mean, spread = LearntLine().estimate(0.84, 0.32)

    assert mean == pytest.approx(0.84)
    assert spread == pytest.approx(0.32 - 0.2 / (50 / 12) ** 0.5)


def test_estimate_follows_confidence_that_tells_quality() -> None:
    """Fifty images each at x of -1/4 and 1/4: sums n 100, y 80, xx 6.25, xy 5. With the prior the slope is
    (50/12 * 0.32 + 5) / (50/12 + 6.25), the mean (50 * 0.84 + 80) / 150."""
    line = LearntLine().seen((all_kept(50, 0.6), all_kept(50, 1.0)), CURVE)

    mean, spread = line.estimate(0.84, 0.32)

    assert (line.n, line.x, line.y, line.xx, line.xy) == pytest.approx((100, 0, 80, 6.25, 5))
    assert mean == pytest.approx(122 / 150)
    assert spread == pytest.approx(0.608 - 0.03793, abs=1e-4)


def test_estimate_does_not_trust_confidence_that_tells_nothing() -> None:
    """Each of a thousand images keeps 0.84: the slope is 0.02, less its error."""
    line = LearntLine().seen((all_kept(500, 0.84), all_kept(500, 0.84)), CURVE)

    mean, spread = line.estimate(0.84, 0.32)

    assert mean == pytest.approx(0.84)
    assert spread == pytest.approx(0.02 - 0.00538, abs=1e-4)


def test_estimate_of_confidence_that_misleads_is_no_spread() -> None:
    line = LearntLine().seen((all_kept(200, 1.0), all_kept(200, 0.7)), CURVE)

    assert line.estimate(0.84, 0.32)[1] == 0.0


def test_evidence_halves_in_an_hour() -> None:
    later = seen(all_kept(10, 0.8), all_kept(10, 0.8)).seen(PlanInput(3_600.0, ()), SETTINGS, CURVE)

    assert later.light.n == pytest.approx(10.0)
    assert later.light.y == pytest.approx(8.0)


def test_hits_estimate_combines_profile_and_comparisons() -> None:
    """Fifty at 0.95 as profiled, and 150 that kept 0.75: 0.8 of the heavy model's, 0.8 / 0.84 of the light one's."""
    asked = PlanInput(0.0, (), (ModelDemand("turbo", 1.0, hits=all_kept(150, 0.75)),))

    learnt = LearntQuality.empty(SETTINGS).seen(asked, SETTINGS, CURVE).applied(SETTINGS)

    assert learnt.quality_of("turbo").reuse == pytest.approx(0.8 / 0.84)
    assert learnt.quality_of("sd15").reuse == pytest.approx(1.0)


@pytest.mark.parametrize(("light", "count"), [("turbo", 7.0), ("other", 0.0)])
def test_policy_keeps_quality_of_same_models_only(light: str, count: float) -> None:
    known = seen(all_kept(3, 0.5), all_kept(4, 0.75))
    last = Decision(memory=JointMemory(DemandForecast(), known))

    memory = JointPolicy(replace(SETTINGS, light=light)).remember(PlanInput(0.0, (), last=last))

    assert memory.quality.light.n == count


def test_notes_report_estimates_after_comparisons() -> None:
    assert LearntQuality.empty(SETTINGS).notes(SETTINGS) == []
    assert seen(all_kept(500, 0.84), all_kept(500, 0.84)).notes(SETTINGS) == [
        "light images of turbo are worth 0.84, and 0.01 more from the least to the most confident, by 512 or more"
        " comparisons"
    ]


@pytest.mark.parametrize(("informed", "cascades"), [(True, True), (False, False)])
def test_plan_has_cascade_only_where_confidence_tells_quality(informed: bool, cascades: bool) -> None:
    """Fourteen a second exceed the heavy model: confidence or chance chooses the requests of the light model."""
    low, high = (0.6, 1.0) if informed else (0.84, 0.84)
    compared = tuple(all_kept(100, low if part < 10 else high) for part in range(20))
    asked = context(16, ModelDemand("turbo", 14.0, compared=compared))

    decision = decide(JointPolicy(SETTINGS), asked)

    assert any(stage.thresholds for one in decision.plan.cascades for stage in one.stages) is cascades


def test_plan_remembers_comparisons_from_look_to_look() -> None:
    compared = tuple(all_kept(100, 0.84) for _ in range(20))
    allocator = JointPolicy(SETTINGS)
    first = decide(allocator, context(16, ModelDemand("turbo", 14.0, compared=compared)))

    later = replace(context(16, ModelDemand("turbo", 14.0), now_s=5.0), last=first)

    assert isinstance(first, Decision)
    assert not any(stage.thresholds for one in decide(allocator, later).plan.cascades for stage in one.stages)


@pytest.mark.parametrize(
    ("quality", "best", "kept"), [(0.3, 0.4, 0.75), (0.9, 0.3, 2.0), (-0.1, 0.5, 0.0), (0.3, 0.0, None)]
)
def test_kept_share_is_bounded_and_needs_a_score(quality: float, best: float, kept: float | None) -> None:
    assert kept_share(quality, best) == (pytest.approx(kept) if kept is not None else None)


def test_comparisons_add_up_by_parts_and_without_any() -> None:
    one, other = (all_kept(1, 0.5), all_kept(2, 1.0)), (all_kept(3, 1.0), all_kept(0, 0.0))

    assert added_up((one, (), other)) == (KeptQuality(4, 3.5, 3.25), KeptQuality(2, 2.0, 2.0))
    assert added_up(()) == ()
