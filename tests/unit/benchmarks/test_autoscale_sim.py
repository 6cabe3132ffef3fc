"""The choice of the peers' settings, and device time at equal violations."""

import pytest

from benchmarks.autoscale_sim import OURS, PEERS, RATES, START_S, ScaledRun, ScalerRuns, ScalerSetting, best, hours_at


def run(violation_count: int, device_h: float) -> ScaledRun:
    return ScaledRun(1000, violation_count, device_h)


@pytest.mark.parametrize(("violation_count", "hours"), [(10, 100.0), (20, 90.0), (40, 70.0), (60, 55.0)])
def test_hours_at_equal_violations_lie_between_the_cheapest_settings(violation_count: int, hours: float) -> None:
    # The run with 30 violations costs more than one with fewer.
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


def played_runs(ours: tuple[ScaledRun, ScaledRun], queue: list[tuple[ScaledRun, ScaledRun]]) -> ScalerRuns:
    """Return runs of one draw, equal on every trace."""
    played = ScalerRuns([1])
    for name in RATES:
        played.runs[OURS, name, 1, START_S] = ours
        for setting, halves in zip(PEERS["queue"], queue, strict=False):
            played.runs[setting, name, 1, START_S] = halves
        for setting in PEERS["queue"][len(queue) :]:
            played.runs[setting, name, 1, START_S] = run(900, 900.0), run(900, 900.0)
    return played


def test_peer_is_chosen_on_first_halves_and_scored_on_second_ones() -> None:
    played = played_runs(
        (run(20, 50.0), run(20, 60.0)), [(run(10, 70.0), run(30, 80.0)), (run(40, 30.0), run(10, 100.0))]
    )

    assert played.chosen("queue") == PEERS["queue"][0]
    # Between 100 hours at 10 violations and 80 at 30.
    assert played.saved("queue") == (pytest.approx(1 - 60 / 90), None)
    assert played.total(OURS) == ScaledRun(5000, 100, 300.0)
