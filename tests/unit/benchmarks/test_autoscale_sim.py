"""The search of the peers' settings, and device time at equal violations."""

import pytest

from benchmarks.autoscale_sim import ScaledRun, ScalerSetting, best, closer, hours_at


def run(violation_count: int, device_h: float) -> ScaledRun:
    return ScaledRun(1000, violation_count, device_h)


@pytest.mark.parametrize(("violation_count", "hours"), [(10, 100.0), (20, 90.0), (40, 70.0), (60, 55.0)])
def test_hours_at_equal_violations_lie_between_the_cheapest_settings(violation_count: int, hours: float) -> None:
    # The run with 30 violations is dearer than another one with fewer.
    runs = [run(80, 40.0), run(10, 100.0), run(40, 70.0), run(30, 101.0)]

    assert hours_at(runs, violation_count) == hours


@pytest.mark.parametrize("violation_count", [9, 81])
def test_hours_outside_the_settings_are_unknown(violation_count: int) -> None:
    assert hours_at([run(10, 100.0), run(80, 40.0)], violation_count) is None


def test_best_setting_is_the_cheapest_with_no_more_violations() -> None:
    settings = [ScalerSetting("queue", target, 300.0) for target in (0.7, 0.8, 0.9)]
    found = dict(zip(settings, [run(5, 120.0), run(9, 110.0), run(20, 80.0)], strict=True))

    assert best(found, run(10, 0.0)) == settings[1]
    assert best(found, run(1, 0.0)) == settings[0]


def test_closer_settings_have_a_short_window_and_a_lower_target() -> None:
    assert closer(ScalerSetting("queue", 0.8, 300.0)) == [
        ScalerSetting("queue", 0.8, 60.0),
        ScalerSetting("queue", 0.7, 60.0),
    ]
    assert closer(ScalerSetting("queue", 0.7, 300.0))[1].target == pytest.approx(0.6)
