"""What several pools of one model are asked for together, and averages of it."""

import pytest

from pentimento.domain.fleet import StartShare
from pentimento.domain.kept_quality import KeptQuality
from pentimento.policies.plan.inputs import ModelDemand, PlanInput
from pentimento.policies.serving.demand import averaged_demand, demand_of, settled_weight, share_weight, smoothed

ONE = ModelDemand(
    "m",
    2.0,
    queue_length=3,
    starts=(StartShare(0, 5),),
    deferred_share=0.5,
    violation_count=1,
    mean_queue_length=1.5,
    sent_on_per_s=0.25,
    confidences=(1, 2, 3),
    compared=(KeptQuality(1, 0.5, 0.25),),
    hits=KeptQuality(1, 1.0, 1.0),
)
OTHER = ModelDemand(
    "m",
    4.0,
    queue_length=7,
    starts=(StartShare(25, 1), StartShare(0, 2)),
    deferred_share=0.25,
    violation_count=2,
    mean_queue_length=2.5,
    sent_on_per_s=0.5,
    confidences=(4, 5, 9),
    compared=(KeptQuality(2, 1.0, 0.5),),
    hits=KeptQuality(2, 1.5, 1.25),
)


def of(*demand: ModelDemand, model: str = "m") -> ModelDemand:
    return demand_of(PlanInput(0.0, (), demand), model)


def test_a_model_that_nobody_asks_for_has_no_demand() -> None:
    assert of(ONE, model="other") == ModelDemand("other", 0.0)
    assert of() == ModelDemand("m", 0.0)


def test_the_demand_of_one_pool_is_the_model_s() -> None:
    assert of(ModelDemand("other", 9.0), ONE) is ONE


def test_what_pools_of_one_model_are_asked_for_adds_up() -> None:
    """Six pictures were scored at the one and eighteen at the other: (6 * 0.5 + 18 * 0.25) / 24."""
    assert of(ONE, ModelDemand("other", 9.0, 9), OTHER) == ModelDemand(
        "m",
        6.0,
        queue_length=10,
        starts=(StartShare(0, 5), StartShare(25, 1), StartShare(0, 2)),
        deferred_share=0.3125,
        violation_count=3,
        mean_queue_length=4.0,
        sent_on_per_s=0.75,
        confidences=(5, 7, 12),
        compared=(KeptQuality(3, 1.5, 0.75),),
        hits=KeptQuality(3, 2.5, 2.25),
    )


def test_a_mean_that_one_pool_does_not_know_nobody_knows() -> None:
    bare = ModelDemand("m", 1.0)

    assert of(ONE, bare).mean_queue_length is None
    assert of(bare, bare).deferred_share == 0.0
    assert of(ONE, bare).confidences == (1, 2, 3)
    assert of(bare, bare).confidences == ()
    assert of(ModelDemand("m", 1.0, mean_queue_length=0.0), ONE).mean_queue_length == 1.5


@pytest.mark.parametrize(("before", "found"), [(0.0, 8.0), (4.0, 5.0), (8.0, 8.0), (12.0, 11.0), (1e-6, 2.0)])
def test_an_average_moves_by_its_weight_and_begins_with_what_is_seen(before: float, found: float) -> None:
    assert smoothed(8.0, before, 0.25) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize(
    ("rate", "weight"), [(80.0, 0.3), (12.0, 0.3), (8.0, 0.2), (0.4, 0.01), (0.1, 1 / 120), (0.0, 1 / 120)]
)
def test_a_second_of_a_slow_fleet_counts_for_less(rate: float, weight: float) -> None:
    """Forty requests, or two minutes."""
    assert settled_weight(0.3, rate) == pytest.approx(weight)


@pytest.mark.parametrize(("count", "weight"), [(0, 0.0), (1, 0.02), (2, 1 - 0.98**2), (50, 1 - 0.98**50)])
def test_so_many_requests_count_for_more_the_more_they_are(count: int, weight: float) -> None:
    assert share_weight(count) == pytest.approx(weight)


def test_two_seconds_at_once_are_as_two_of_one() -> None:
    once = averaged_demand(10.0, averaged_demand(10.0, 2.0, 0.25, 1.0), 0.25, 1.0)

    assert averaged_demand(10.0, 2.0, 0.25, 2.0) == pytest.approx(once) == pytest.approx(2.0 + 8.0 * (1 - 0.75**2))
    assert averaged_demand(10.0, 2.0, 0.25, 0.0) == 2.0


def test_pools_that_count_confidences_in_other_bins_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="shorter"):
        of(ONE, ModelDemand("m", 1.0, confidences=(1, 2)))
