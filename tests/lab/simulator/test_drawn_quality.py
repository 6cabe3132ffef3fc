"""Test the draws of quality and confidence, and what allocators get of both."""

from dataclasses import replace
from statistics import correlation, mean, pstdev

import pytest

from lab.simulator.ledger import Chance
from lab.simulator.scenario import Scenario
from pentimento.domain.demand import NOTHING_KEPT, KeptQuality
from pentimento.domain.errors import InvalidArgument
from pentimento.policies.plan.inputs import Decision, PlanInput
from tests.lab.simulator.scenarios import cascade, poisson, run


def light_draws(tells: float) -> list[tuple[float, float]]:
    """Confidence and quality of accepted light images."""
    scenario = cascade("clipper-light", confidence_correlation=tells)
    scenario = replace(scenario, policy=cascade("static-threshold").policy)
    records = run(scenario, poisson(8.0, 400))
    return [(r.confidence, r.quality) for r in records if r.model == "turbo" and r.confidence and r.quality]


@pytest.mark.parametrize(("tells", "low", "high"), [(1.0, 0.999, 1.0), (0.7, 0.3, 0.8), (0.0, -0.25, 0.25)])
def test_confidence_predicts_quality_by_its_correlation(tells: float, low: float, high: float) -> None:
    draws = light_draws(tells)

    assert len(draws) > 100
    assert low <= correlation(*zip(*draws, strict=True)) <= high + 1e-9


def test_quantile_of_uncorrelated_confidence_is_its_own_draw() -> None:
    chance = Chance(0.0, 0.0, 0.0)

    assert chance.quantile(0.9, 1.0) == 0.9
    assert chance.quantile(0.9, 0.0) == pytest.approx(0.5)


def test_images_deviate_around_mean_of_their_model() -> None:
    scenario = cascade("clipper-heavy")
    models = tuple(replace(model, deviation=0.1) for model in scenario.models)

    found = [r.quality for r in run(replace(scenario, models=models), poisson(2.0, 400)) if r.quality is not None]

    assert mean(found) == pytest.approx(0.9, abs=0.02)
    assert pstdev(found) == pytest.approx(0.1, abs=0.02)


def test_allocator_gets_quality_of_deferred_light_images() -> None:
    """A light image is worth 0.6 to 1.0 here and a heavy one 0.9; the least confident half is deferred."""
    scenario, heard = cascade("static-threshold"), list[tuple[KeptQuality, ...]]()

    def hearing(context: PlanInput) -> Decision:
        heard.extend(one.compared for one in context.demand if one.compared)
        return scenario.policy.allocator(context)

    policy = replace(scenario.policy, allocator=hearing)
    records = run(replace(scenario, policy=policy), poisson(4.0, 400))

    sums = [sum(parts, NOTHING_KEPT) for parts in zip(*heard, strict=True)]
    deferred = [r for r in records if r.deferred and r.model == "sd15"]
    assert 0 < sum(one.count for one in sums) <= len(deferred)
    assert sums[19] == NOTHING_KEPT
    assert sums[0].kept / sums[0].count == pytest.approx((0.6 + 0.4 * 0.025) / 0.9, abs=0.02)


def test_correlation_beyond_one_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="confidence_correlation: must be 0 to 1"):
        replace_correlation(1.5)


def replace_correlation(tells: float) -> Scenario:
    return cascade("diffserve", confidence_correlation=tells)


def test_known_confidences_decide_deferral() -> None:
    known = {("", seed): 0.9 if seed % 2 else 0.1 for seed in range(20)}
    scenario = replace(cascade("static-threshold"), confidences=known)

    records = run(scenario, poisson(1.0, 20))

    assert [record.deferred for record in records] == [seed % 2 == 0 for seed in range(20)]
