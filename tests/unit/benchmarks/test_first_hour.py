"""Test the sides of `first_hour`, and their figures."""

import pytest

from benchmarks.first_hour import (
    HEAVY,
    LIGHT_MODEL,
    NEW,
    PROFILED,
    Hour,
    Known,
    by_minute,
    figures_of,
    play,
    scenario_of,
)
from lab.runs import Outcome, RequestRecord
from pentimento.policies.plan.joint.policy import JointPolicy


def hour(images_per_s: float) -> Hour:
    return Hour((images_per_s,) * 70, 0.0, 0.97, 12, reuses=False)


def test_figures_hold_their_target() -> None:
    missing = {"reuse": hour(4.0)}

    good = figures_of([hour(4.5)] * 3, [hour(5.0)] * 3, missing, 6.0)
    bad = figures_of([hour(2.0)] * 3, [hour(5.0)] * 3, missing, 6.0)

    assert (good[0].value, good[0].ok) == (pytest.approx(0.9), True)
    assert (bad[0].value, bad[0].ok) == (pytest.approx(0.4), False)
    assert [figure.value for figure in good if "everything profiled but" in figure.name] == [pytest.approx(0.8)]


def test_by_minute_counts_images_in_time_where_they_end() -> None:
    ends = [(1.0, Outcome.COMPLETED), (59.0, Outcome.LATE), (61.0, Outcome.COMPLETED), (200.0, Outcome.COMPLETED)]
    records = [RequestRecord("r", "t", "s", "p", 0.0, 15.0, ended_s, outcome) for ended_s, outcome in ends]

    assert by_minute(records, 2) == (1 / 60, 1 / 60)


@pytest.mark.parametrize("known", [NEW, PROFILED, Known(steps=False)])
def test_scenario_has_what_is_known(known: Known) -> None:
    scenario = scenario_of(known, 2.0)
    allocator = scenario.policy.allocator

    assert isinstance(allocator, JointPolicy) and allocator.settings.heavy == HEAVY
    assert allocator.settings.light == (LIGHT_MODEL if known.cascade else "")
    assert bool(scenario.model(HEAVY).thinning) is known.steps
    assert bool(scenario.adapters.latest_start_fraction) is known.loras


def test_profiled_side_reuses_where_the_new_one_tries() -> None:
    new, profiled = (play(known, 1.0, 120.0, seed=1) for known in (NEW, PROFILED))

    assert (new.reuses, profiled.reuses) == (False, True)
    assert new.trials > 0
    assert sum(profiled.by_minute) > 0.0
