"""DiffServe's problem on a handful of devices, solved by hand: which threshold, which devices, which batches."""

from dataclasses import replace

import pytest

from pentimento.policies.serving.cascade_problem import CascadeProblem, CascadeSolution, all_light, grid, solve
from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.settings import DeferralCurve


def waits(seconds: float):  # type: ignore[no-untyped-def]
    return lambda cost: seconds


# One a second by a light device, half of one by a heavy one.
PROBLEM = CascadeProblem(
    2.0, 6, 9.0, (BatchCost(1, 1.0),), (BatchCost(1, 2.0),), DeferralCurve(), grid(5), waits(0.0), waits(0.0)
)


def test_thresholds_are_evenly_spaced() -> None:
    assert grid(5) == (0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.mark.parametrize(
    ("demand", "threshold", "light", "heavy"),
    [(2.0, 1.0, 2, 4), (2.1, 0.5, 3, 3), (3.0, 0.5, 3, 3), (4.0, 0.25, 4, 2), (5.0, 0.0, 6, 0), (0.0, 1.0, 1, 5)],
)
def test_what_the_light_devices_leave_sends_as_many_on_as_it_carries(
    demand: float, threshold: float, light: int, heavy: int
) -> None:
    found = solve(replace(PROBLEM, demand=demand))

    assert (found.threshold, found.light_count, found.heavy_count) == (threshold, light, heavy)
    assert (found.feasible, found.admission_rate) == (True, 1.0)


@pytest.mark.parametrize(
    ("changes", "latency_s"),
    [
        ({}, 3.0),
        ({"light_queue_s": waits(0.5)}, 3.5),
        ({"heavy_queue_s": waits(0.25)}, 3.25),
        ({"discriminator_s": 0.125}, 3.125),
        ({"demand": 5.0, "light_queue_s": waits(0.5), "heavy_queue_s": waits(0.25)}, 1.5),
    ],
)
def test_a_request_takes_both_models_with_their_queues_and_the_score(
    changes: dict[str, object], latency_s: float
) -> None:
    found = solve(replace(PROBLEM, **changes))  # type: ignore[arg-type]
    late = solve(replace(PROBLEM, **changes, slo_s=latency_s - 0.001))  # type: ignore[arg-type]

    assert found.latency_s == pytest.approx(latency_s)
    assert solve(replace(PROBLEM, **changes, slo_s=max(found.latency_s, 3.75))).feasible  # type: ignore[arg-type]
    assert not late.feasible


def test_relaxed_nobody_has_to_be_sent_on_in_time() -> None:
    tight = replace(PROBLEM, slo_s=2.0)

    assert not solve(tight).feasible
    assert solve(replace(tight, relaxed=True)) == CascadeSolution(6, 0, 1, 1, 0.0, 1.0)
    assert not solve(replace(tight, relaxed=True, slo_s=0.9)).feasible


@pytest.mark.parametrize(
    ("slo_s", "demand", "batch", "rate"),
    [(2.0, 24.0, 4, 0.5), (1.99, 24.0, 1, 0.25), (0.5, 24.0, 1, 0.25), (2.0, 3.0, 4, 1.0), (2.0, 0.0, 4, 1.0)],
)
def test_without_a_solution_all_are_light_in_the_batch_that_carries_most_in_time(
    slo_s: float, demand: float, batch: int, rate: float
) -> None:
    light = (BatchCost(1, 1.0), BatchCost(4, 2.0), BatchCost(8, 9.0))
    problem = replace(PROBLEM, slo_s=slo_s, demand=demand, light=light, heavy=(BatchCost(2, 5.0), BatchCost(4, 6.0)))

    found = all_light(problem)

    latency_s = {1: 1.0, 4: 2.0}[batch]
    assert found == CascadeSolution(6, 0, batch, 2, 0.0, latency_s, feasible=False, admission_rate=rate)


def test_batches_are_those_that_send_most_on() -> None:
    """Four a second by two light devices in batches of four, and two by two heavy ones in batches of two."""
    problem = replace(
        PROBLEM,
        demand=4.0,
        device_count=4,
        light=(BatchCost(1, 1.0), BatchCost(4, 2.0)),
        heavy=(BatchCost(1, 2.0), BatchCost(2, 2.0)),
    )

    assert solve(problem) == CascadeSolution(2, 2, 4, 2, 0.5, 4.0)
    assert solve(replace(problem, slo_s=3.5)).feasible
    assert solve(replace(problem, slo_s=3.5)).threshold == 0.0
