"""When two workers paint one picture: as long as that is faster, and its deadline gains by it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.generation import (
    ControlNetSelection,
    FromNoise,
    GenerationSpec,
    LoraSelection,
    Route,
    Scheduler,
)
from pentimento.policies.latent_pairing import PairPace, can_pair, deadline_gains

SECONDS = st.floats(0.001, 100.0)
ROUTE = Route("route", FromNoise(), "m", "sha256:m")


def pace_of(whole_s: float, paired_s: float, count: int = 8) -> PairPace:
    pace = PairPace()
    for _ in range(count):
        pace.took_whole(whole_s)
        pace.took_paired(paired_s)
    return pace


@pytest.mark.parametrize(
    ("remaining_s", "alone_s", "gains"),
    [(10.0, 4.0, False), (8.0, 4.0, False), (7.9, 4.0, True), (-1.0, 4.0, True), (math.inf, 4.0, False)],
)
def test_a_pair_is_for_requests_whose_deadline_is_near(remaining_s: float, alone_s: float, gains: bool) -> None:
    assert deadline_gains(remaining_s, alone_s) is gains


def test_where_no_speed_is_known_no_deadline_is_near() -> None:
    assert not deadline_gains(0.001, None)


@pytest.mark.parametrize(
    ("changes", "can"),
    [
        ({}, True),
        ({"guidance_scale": 1.0}, False),
        ({"guidance_scale": 1.5}, True),
        ({"controlnets": (ControlNetSelection("edges", b"png"),)}, True),
        ({"loras": (LoraSelection("neon"),)}, True),
    ],
    ids=["guided", "unguided", "hardly guided", "ControlNet", "LoRA"],
)
def test_only_a_guided_picture_has_two_halves(changes: dict[str, Any], can: bool) -> None:
    spec = GenerationSpec("a", "", "m", 64, 64, 20, 5.0, Scheduler.DDIM, 1)
    assert can_pair(replace(spec, **changes), ROUTE) is can


@pytest.mark.parametrize("changes", [{"replay_of": "another"}, {"pipelined_from_step": 3}])
def test_neither_a_replay_nor_residuals_a_step_old_are_shared_by_two(changes: dict[str, Any]) -> None:
    spec = GenerationSpec("a", "", "m", 64, 64, 20, 5.0, Scheduler.DDIM, 1)
    assert not can_pair(spec, replace(ROUTE, **changes))


@given(remaining_s=SECONDS, alone_s=SECONDS, more_s=SECONDS)
def test_who_has_less_time_left_gains_too(remaining_s: float, alone_s: float, more_s: float) -> None:
    if deadline_gains(remaining_s + more_s, alone_s):
        assert deadline_gains(remaining_s, alone_s)


def test_a_pair_is_tried_until_it_was_measured() -> None:
    pace = PairPace()
    assert (pace.pays, pace.gain) == (True, None)

    pace.took_whole(1.0)
    for _ in range(3):
        pace.took_paired(5.0)

    assert (pace.pays, pace.gain) == (True, None)
    pace.took_paired(5.0)
    assert (pace.pays, pace.gain) == (False, 0.2)


@pytest.mark.parametrize(("paired_s", "pays"), [(0.5, True), (0.9, True), (0.95, False), (1.5, False)])
def test_a_pair_pays_while_a_paired_step_is_shorter_by_a_tenth(paired_s: float, pays: bool) -> None:
    assert pace_of(1.0, paired_s).pays is pays


def test_one_slow_step_does_not_end_a_pair() -> None:
    pace = pace_of(1.0, 0.5)

    pace.took_paired(60.0)

    assert pace.gain == 2.0


def test_a_pair_that_did_not_pay_is_tried_again_much_later() -> None:
    pace = pace_of(1.0, 2.0)

    for _ in range(499):
        pace.took_whole(1.0)
    before = pace.pays
    pace.took_whole(1.0)

    assert (before, pace.pays) == (False, True)


@given(whole_s=SECONDS, own_half_s=SECONDS)
def test_a_peer_that_never_answers_costs_a_step_at_most_twice_its_time(whole_s: float, own_half_s: float) -> None:
    pace = pace_of(whole_s, whole_s / 2)
    assert pace.patience_s(own_half_s) == max(whole_s, 0.02)
    assert PairPace().patience_s(own_half_s) == max(2.0 * own_half_s, 0.02)


def test_who_opens_streams_to_controlnets_has_half_a_second_for_it() -> None:
    assert pace_of(0.1, 0.05).patience_s(0.05, opens_control=True) == 0.5
    assert pace_of(2.0, 1.0).patience_s(1.0, opens_control=True) == 2.0
