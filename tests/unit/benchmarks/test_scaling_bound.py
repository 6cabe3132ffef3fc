"""The bound of device time against small cases that can be counted by hand."""

import pytest

pytest.importorskip("scipy", reason="the bound is a linear program")

from benchmarks.scaling_bound import BoundedFleet, least_device_h

FLEET = BoundedFleet(run_s=60.0, slo_s=120.0, start_s=90.0, most=300)


def least_s(*traces: list[float], violations: int = 0, fleet: BoundedFleet = FLEET) -> float:
    return 3600.0 * least_device_h(traces, 900.0, violations, fleet)


@pytest.mark.parametrize(("violations", "seconds"), [(0, 600.0), (4, 360.0), (10, 0.0)])
def test_bound_is_the_work_of_requests_within_their_slo(violations: int, seconds: float) -> None:
    assert least_s([7.0] * 10, violations=violations) == pytest.approx(seconds)


def test_violations_are_shared_by_traces() -> None:
    assert least_s([7.0] * 10, [7.0] * 10, violations=15) == pytest.approx(5 * 60.0)


def test_devices_that_end_between_two_bursts_start_again() -> None:
    # Four requests have nine slots of 15 s to run: 16/9 devices, with a start of 90 s, shorter than the pause.
    assert least_s([7.0] * 4 + [607.0] * 4) == pytest.approx(2 * 240.0 + 90.0 * 16 / 9)


def test_devices_that_take_longer_to_start_than_the_pause_stay() -> None:
    slow = BoundedFleet(run_s=60.0, slo_s=120.0, start_s=480.0, most=300)

    # At the end of the first burst nothing may be removed for less than the pause from 135 s to 600 s.
    assert least_s([7.0] * 4 + [607.0] * 4, fleet=slow) == pytest.approx(2 * 240.0 + 465.0 * 16 / 9)


def test_requests_that_end_after_the_trace_need_no_device() -> None:
    assert least_s([890.0] * 10) == pytest.approx(0.0)


def test_too_few_devices_have_no_solution() -> None:
    with pytest.raises(RuntimeError, match="no solution"):
        least_s([7.0] * 10, fleet=BoundedFleet(60.0, 120.0, 90.0, 2))
