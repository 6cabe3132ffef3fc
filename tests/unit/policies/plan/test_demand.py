"""Average demand and shares, and find the demand for a model."""

from typing import Any

import pytest

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.demand import NOTHING_KEPT, AdapterDemand, KeptQuality, PoolDemand, StartShare
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.policies.plan.demand import (
    DemandWindow,
    averaged_demand,
    demand_of,
    settled_weight,
    share_weight,
    smoothed,
)
from pentimento.policies.plan.entry import scaled_start_step
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, ReplicaView
from pentimento.wire.codec import decode, encode


@pytest.mark.parametrize(
    ("model", "found"),
    [
        pytest.param("m", ModelDemand("m", 2.0, 3), id="requested"),
        pytest.param("absent", ModelDemand("absent", 0.0), id="not-requested"),
    ],
)
def test_demand_of_a_model(model: str, found: ModelDemand) -> None:
    given = PlanInput(0.0, (), (ModelDemand("other", 9.0), ModelDemand("m", 2.0, 3)))

    assert demand_of(given, model) == found


@pytest.mark.parametrize(("before", "found"), [(0.0, 8.0), (4.0, 5.0), (8.0, 8.0), (12.0, 11.0), (1e-6, 2.0)])
def test_average_begins_with_first_value_and_moves_by_weight(before: float, found: float) -> None:
    assert smoothed(8.0, before, 0.25) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize(
    ("rate", "weight"), [(80.0, 0.3), (12.0, 0.3), (8.0, 0.2), (0.4, 0.01), (0.1, 1 / 120), (0.0, 1 / 120)]
)
def test_second_of_a_slow_fleet_counts_for_less(rate: float, weight: float) -> None:
    """Forty requests, or two minutes."""
    assert settled_weight(0.3, rate) == pytest.approx(weight)


@pytest.mark.parametrize(("count", "weight"), [(0, 0.0), (1, 0.02), (2, 1 - 0.98**2), (50, 1 - 0.98**50)])
def test_share_weight_grows_with_request_count(count: int, weight: float) -> None:
    assert share_weight(count) == pytest.approx(weight)


def test_two_seconds_at_once_are_as_two_of_one() -> None:
    once = averaged_demand(10.0, averaged_demand(10.0, 2.0, 0.25, 1.0), 0.25, 1.0)

    assert averaged_demand(10.0, 2.0, 0.25, 2.0) == pytest.approx(once) == pytest.approx(2.0 + 8.0 * (1 - 0.75**2))
    assert averaged_demand(10.0, 2.0, 0.25, 0.0) == 2.0


def test_scaled_start_step_keeps_share_and_one_step() -> None:
    assert [scaled_start_step(step, 50, 10) for step in (0, 2, 20, 50)] == [0, 0, 4, 9]


LIVE = tuple(ReplicaView(Replica(name, ReplicaKind.FRONTDOOR, "unix:/a", 1)) for name in ("f1", "f2", "w1"))


@pytest.fixture
def window() -> DemandWindow:
    return DemandWindow()


def report(door: str = "f1", model: str = "heavy", **counts: Any) -> ReplicaReport:
    return ReplicaReport(door, 1, demand=(PoolDemand(model, **counts),))


def test_arrival_rate_is_over_reported_time_summed_over_front_doors(window):
    window.add(report("f1", arrived_count=10), 1.0)
    window.add(report("f1", arrived_count=20), 2.0)
    window.add(report("f2", arrived_count=10), 2.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.model, heavy.arrivals_per_s) == ("heavy", 15.0)


def test_queue_includes_front_doors_and_workers_now_and_on_average(window):
    for at_door, at_worker in ((9, 4), (3, 2)):
        window.add(report(queue_length=at_door), 1.0)
        window.add(ReplicaReport("w1", 1, ("heavy",), at_worker), 1.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.queue_length, heavy.mean_queue_length) == (5, 9.0)


def test_queues_of_one_model_add_up_within_a_report() -> None:
    window = DemandWindow()
    for quick, full in ((4, 1), (2, 3)):
        pools = (PoolDemand("heavy", pool="quick", queue_length=quick), PoolDemand("heavy", queue_length=full))
        window.add(ReplicaReport("f1", 1, demand=pools), 1.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.queue_length, heavy.mean_queue_length) == (5, 5.0)


def test_model_without_arrivals_counts_while_requests_wait(window):
    window.add(ReplicaReport("w1", 1, ("light",), 2), 1.0)
    window.add(ReplicaReport("w1", 1, ("heavy",), 0), 1.0)

    assert [(demand.model, demand.arrivals_per_s, demand.queue_length) for demand in window.take(LIVE)] == [
        ("light", 0.0, 2)
    ]


def test_scores_of_all_replicas_are_added_by_part(window: DemandWindow) -> None:
    low, high = (1, *(0,) * 19), (*(0,) * 19, 2)
    for message in (report(scored_count=1, confidences=low), report(), report("f2", scored_count=2, confidences=high)):
        window.add(decode(encode(message, controller_pb.ReportRequest), ReplicaReport), 1.0)

    assert window.take(LIVE)[0].confidences == (1, *(0,) * 18, 2)


def test_starts_are_counted_by_step_and_broken_slos_together(window):
    window.add(report(dropped_count=1, starts=(StartShare(0, 3), StartShare(5, 1))), 1.0)
    window.add(report("f2", late_count=2, starts=(StartShare(5, 4),)), 1.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.starts, heavy.violation_count) == ((StartShare(0, 3), StartShare(5, 5)), 3)


def test_taken_demand_is_not_taken_again(window):
    window.add(report(arrived_count=10, dropped_count=1), 1.0)
    window.take(LIVE)
    window.add(report(arrived_count=4), 1.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.arrivals_per_s, heavy.violation_count) == (4.0, 0)


def test_departed_front_door_is_not_counted(window):
    window.add(report("f1", arrived_count=10), 1.0)
    window.add(report("f2", arrived_count=10), 1.0)

    assert window.take(LIVE[:1])[0].arrivals_per_s == 10.0


def test_pools_of_one_model_are_added_up() -> None:
    window = DemandWindow()
    window.add(report(arrived_count=4, scored_count=4, deferred_count=1, stood_in_count=1), 1.0)
    window.add(report("f2", pool="quick", arrived_count=6), 1.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.arrivals_per_s, heavy.sent_on_per_s) == (10.0, 2.0)


def test_starts_of_one_step_are_counted_by_kind_with_confidences_and_adapters() -> None:
    window = DemandWindow()
    starts = (StartShare(5, 1, "latent", 50, "heavy"), StartShare(5, 2, "image", 50, "light"))
    counts = (1, *(0,) * 18, 3)
    asked = (AdapterDemand(AdapterKind.LORA, "neon", 2),)
    for door in ("f1", "f2"):
        window.add(report(door, starts=starts, confidences=counts, adapters=asked), 1.0)

    (heavy,) = window.take(LIVE)

    assert heavy.starts == (StartShare(5, 4, "image", 50, "light"), StartShare(5, 2, "latent", 50, "heavy"))
    assert (heavy.confidences[0], heavy.confidences[19]) == (2, 6)
    assert heavy.adapters == (AdapterDemand(AdapterKind.LORA, "neon", 4),)


def test_compared_images_add_up_over_front_doors() -> None:
    window = DemandWindow()
    compared = (KeptQuality(1, 0.5, 0.25), *(NOTHING_KEPT,) * 19)
    for door in ("f1", "f2"):
        window.add(report(door, compared=compared, hits=KeptQuality(1, 0.75, 0.5625)), 1.0)

    (heavy,) = window.take(LIVE)

    assert (heavy.compared[0], len(heavy.compared)) == (KeptQuality(2, 1.0, 0.5), 20)
    assert heavy.hits == KeptQuality(2, 1.5, 1.125)


def test_thinnable_steps_are_summed_over_pools_reports_and_front_doors() -> None:
    window = DemandWindow()
    window.add(report(thinnable=ThinnableSteps(4, 2.0, 0.5)), 1.0)
    window.add(report(pool="quick", thinnable=ThinnableSteps(1, 0.5, 0.25)), 1.0)
    window.add(report("f2", thinnable=ThinnableSteps(2, 0.0, 0.0)), 1.0)

    (heavy,) = window.take(LIVE)

    assert heavy.thinnable == ThinnableSteps(7, 2.5, 0.75)
