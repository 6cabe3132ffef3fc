"""Test the sides of `first_hour`, and their figures."""

import pytest

from benchmarks import first_hour
from benchmarks.first_hour import (
    HEAVY,
    LIGHT_MODEL,
    NEW,
    ONE_DEVICE,
    PROFILED,
    TWO_DEVICES,
    Hour,
    Known,
    MeasuredProfile,
    by_minute,
    course_of,
    figures_of,
    play,
    scenario_of,
)
from lab.runs import Outcome, RequestRecord
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.rules import ThresholdRule
from tests.support.profiles import LATENT_PROFILE, REUSE_ROWS, STEPS_PROFILE, changed, thinned_row


def hour(images_per_s: float) -> Hour:
    return Hour((images_per_s,) * 70, 0.0, 0.97, 12)


def test_figures_hold_their_target() -> None:
    missing = {"reuse": hour(4.0)}

    good = figures_of({"one": [hour(4.5)] * 3, "none": [hour(1.0)] * 3}, [hour(5.0)] * 3, missing, 6.0)
    bad = figures_of({"one": [hour(2.0)] * 3}, [hour(5.0)] * 3, missing, 6.0)

    assert (good[0].value, good[0].ok) == (pytest.approx(0.9), True)
    assert (bad[0].value, bad[0].ok) == (pytest.approx(0.4), False)
    assert [(one.value, one.ok) for one in good if one.name.endswith("profiled: none")] == [(pytest.approx(0.2), True)]
    assert [figure.value for figure in good if "everything profiled but" in figure.name] == [pytest.approx(0.8)]


def test_by_minute_counts_images_in_time_where_they_end() -> None:
    ends = [(1.0, Outcome.COMPLETED), (59.0, Outcome.LATE), (61.0, Outcome.COMPLETED), (200.0, Outcome.COMPLETED)]
    records = [RequestRecord("r", "t", "s", "p", 0.0, 15.0, ended_s, outcome) for ended_s, outcome in ends]

    assert by_minute(records, 2) == (1 / 60, 1 / 60)


@pytest.mark.parametrize("known", [NEW, PROFILED, Known(steps=False)])
def test_scenario_has_known_values(known: Known) -> None:
    scenario = scenario_of(known, 2.0)
    allocator = scenario.policy.allocator

    assert isinstance(allocator, JointPolicy) and allocator.settings.heavy == HEAVY
    assert allocator.settings.light == (LIGHT_MODEL if known.cascade else "")
    assert bool(scenario.adapters.latest_start_fraction) is known.loras


def test_profiles_come_into_force_row_by_row_while_their_device_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(thinned_row(0, count, ThresholdRule.LOWER_BOUND) for count in (15, 10))
    steps = MeasuredProfile(changed(STEPS_PROFILE, rows=rows), (1_000, 3_000))
    reuse = MeasuredProfile(changed(LATENT_PROFILE, rows=REUSE_ROWS[:1]), (2_000,))
    monkeypatch.setattr(first_hour, "recorded", {ProfileKind.STEPS: steps, ProfileKind.REUSE: reuse}.copy)

    alone, both, before = (course_of(known) for known in (ONE_DEVICE, TWO_DEVICES, PROFILED))

    # Sixteen images of fifty steps take 79.11 s.
    assert [round(at_s, 1) for at_s, _ in alone.changes] == [98.9, 296.7, 494.4]
    assert [len(profile.rows) for _, profile in alone.changes] == [1, 2, 1]
    assert [(one.worker_id, one.at_s, round(one.for_s, 1)) for one in alone.outages] == [("w0-7", 0.0, 494.4)]
    assert [round(at_s, 1) for at_s, _ in both.changes] == [98.9, 296.7, 197.8]
    assert [(one.worker_id, round(one.for_s, 1)) for one in both.outages] == [("w0-7", 296.7), ("w0-6", 197.8)]
    assert [(at_s, len(profile.rows)) for at_s, profile in before.changes] == [(0.0, 1), (0.0, 2)]
    assert before.outages == ()


def test_new_side_tries_and_profiled_side_carries_more() -> None:
    new, profiled = (play(known, 4.0, 240.0, seed=1) for known in (NEW, PROFILED))

    assert new.trials > 0
    assert sum(new.by_minute) < 0.6 * sum(profiled.by_minute)
