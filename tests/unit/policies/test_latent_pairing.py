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


def pace_of(whole_s: float, paired_s: float, own_half_s: float | None = None) -> PairPace:
    """After sixteen steps of each kind; the own half takes all of the paired step unless it is given."""
    pace = PairPace()
    for _ in range(16):
        pace.took_whole(whole_s)
    paired(pace, 16, paired_s, own_half_s)
    return pace


def paired(pace: PairPace, count: int, paired_s: float, own_half_s: float | None = None) -> None:
    for _ in range(count):
        pace.took_paired(paired_s, paired_s if own_half_s is None else own_half_s)


def whole(pace: PairPace, count: int, whole_s: float) -> list[bool]:
    """After how many of them a pair is worth it."""
    pays = []
    for _ in range(count):
        pace.took_whole(whole_s)
        pays.append(pace.pays)
    return pays


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
    paired(pace, 15, 5.0)

    assert (pace.pays, pace.gain) == (True, None)
    paired(pace, 1, 5.0)
    assert (pace.pays, pace.gain) == (False, 0.2)


def test_without_a_whole_step_nothing_is_known() -> None:
    pace = PairPace()

    paired(pace, 100, 5.0)

    assert (pace.pays, pace.gain) == (True, None)


@pytest.mark.parametrize(("paired_s", "pays"), [(0.5, True), (0.9, True), (0.95, False), (1.5, False)])
def test_a_pair_begins_where_a_paired_step_is_shorter_by_a_tenth(paired_s: float, pays: bool) -> None:
    assert pace_of(1.0, paired_s).pays is pays


@pytest.mark.parametrize(("paired_s", "own_half_s", "gain"), [(0.8, 0.6, 1.25), (0.8, 0.8, 1.25), (2.0, 0.5, 0.5)])
def test_waiting_for_the_other_half_is_part_of_a_paired_step(paired_s: float, own_half_s: float, gain: float) -> None:
    assert pace_of(1.0, paired_s, own_half_s).gain == pytest.approx(gain)


@pytest.mark.parametrize(("paired_s", "pays"), [(0.95, True), (1.0, True), (1.01, False)])
def test_a_pair_goes_on_until_a_paired_step_is_no_shorter(paired_s: float, pays: bool) -> None:
    pace = pace_of(1.0, 0.5)

    paired(pace, 16, paired_s, 0.5)

    assert pace.pays is pays


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_a_machine_that_is_slower_than_before_says_nothing_of_the_pair(slower: float) -> None:
    pace = pace_of(1.0, 0.8, 0.7)

    paired(pace, 200, 0.8 * slower, 0.7 * slower)

    assert pace.gain == pytest.approx(1.25)


def test_one_slow_step_does_not_end_a_pair() -> None:
    pace = pace_of(1.0, 0.5)

    pace.took_paired(60.0, 0.5)

    assert (pace.pays, pace.gain) == (True, 2.0)


def test_a_pair_that_did_not_pay_is_tried_again_later_and_later() -> None:
    pace, waited = pace_of(1.0, 2.0), []

    for _ in range(7):
        pays = whole(pace, 2000, 1.0)
        waited.append(pays.index(True) + 1)
        paired(pace, 16, 2.0)

    assert waited == [64, 128, 256, 512, 1024, 1024, 1024]


def test_a_pair_that_paid_again_is_tried_again_as_soon_as_the_first_time() -> None:
    pace = pace_of(1.0, 2.0, 0.5)
    whole(pace, 64, 1.0)
    paired(pace, 16, 0.5)
    assert pace.pays

    paired(pace, 16, 2.0, 0.5)

    assert whole(pace, 64, 1.0) == [False] * 63 + [True]


@given(whole_s=SECONDS, own_half_s=SECONDS)
def test_a_peer_that_never_answers_costs_a_step_at_most_twice_its_time(whole_s: float, own_half_s: float) -> None:
    pace = pace_of(whole_s, whole_s / 2)
    assert pace.patience_s(own_half_s) == max(whole_s, 0.02)
    assert PairPace().patience_s(own_half_s) == max(2.0 * own_half_s, 0.02)


def test_who_opens_streams_to_controlnets_has_half_a_second_for_it() -> None:
    assert pace_of(0.1, 0.05).patience_s(0.05, opens_control=True) == 0.5
    assert pace_of(2.0, 1.0).patience_s(1.0, opens_control=True) == 2.0
