"""Two workers denoise one image as long as that is faster and its deadline gains by it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.generation import ControlKind, ControlNetSelection, ImagePromptSelection, LoraSelection
from pentimento.policies.latent_pairing import PairPace, can_pair, deadline_gains
from tests.support.values import a_route, a_spec

SECONDS = st.floats(0.001, 100.0)


def pace_of(whole_s: float, paired_s: float, own_half_s: float | None = None) -> PairPace:
    """Return the pace after sixteen steps of each kind; the own half takes the whole paired step by default."""
    pace = PairPace()
    for _ in range(16):
        pace.took_whole(whole_s)
    paired(pace, 16, paired_s, own_half_s)
    return pace


def paired(pace: PairPace, count: int, paired_s: float, own_half_s: float | None = None) -> None:
    for _ in range(count):
        pace.took_paired(paired_s, paired_s if own_half_s is None else own_half_s)


def whole(pace: PairPace, count: int, whole_s: float) -> list[bool]:
    """Return after each whole step whether a pair pays."""
    pays = []
    for _ in range(count):
        pace.took_whole(whole_s)
        pays.append(pace.pays)
    return pays


def test_deadline_gains_from_pair_when_near() -> None:
    remaining_s = (10.0, 8.0, 7.9, -1.0, math.inf)

    assert [deadline_gains(each, 4.0) for each in remaining_s] == [False, False, True, True, False]
    assert not deadline_gains(0.001, None), "no speed is known"


def test_can_pair_guided_images_that_are_no_replay() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"guidance_scale": 1.5},
        {"controlnets": (ControlNetSelection("edges", b"png"),)},
        {"loras": (LoraSelection("neon"),)},
    ]

    assert all(can_pair(a_spec(**change), a_route()) for change in changes)
    assert not can_pair(a_spec(guidance_scale=1.0), a_route())
    assert not can_pair(a_spec(image_prompts=(ImagePromptSelection("style", b"png"),)), a_route())
    assert can_pair(a_spec(controlnets=(ControlNetSelection("edges", b"png"),)), a_route())
    assert not can_pair(a_spec(controlnets=(ControlNetSelection("all", b"png", kind=ControlKind.TILE),)), a_route())
    assert not can_pair(a_spec(), a_route(replay_of="another"))
    assert not can_pair(a_spec(), a_route(pipelined_from_step=3))


@given(remaining_s=SECONDS, alone_s=SECONDS, more_s=SECONDS)
def test_deadline_gains_grow_with_less_time(remaining_s: float, alone_s: float, more_s: float) -> None:
    if deadline_gains(remaining_s + more_s, alone_s):
        assert deadline_gains(remaining_s, alone_s)


def test_pair_pace_pays_until_measured() -> None:
    pace = PairPace()
    assert (pace.pays, pace.gain) == (True, None)

    pace.took_whole(1.0)
    paired(pace, 15, 5.0)

    assert (pace.pays, pace.gain) == (True, None)
    paired(pace, 1, 5.0)
    assert (pace.pays, pace.gain) == (False, 0.2)


def test_pair_pace_without_whole_step_knows_no_gain() -> None:
    pace = PairPace()

    paired(pace, 100, 5.0)

    assert (pace.pays, pace.gain) == (True, None)


@pytest.mark.parametrize(("paired_s", "pays"), [(0.5, True), (0.9, True), (0.95, False), (1.5, False)])
def test_pair_pace_begins_below_nine_tenths(paired_s: float, pays: bool) -> None:
    assert pace_of(1.0, paired_s).pays is pays


@pytest.mark.parametrize(("paired_s", "own_half_s", "gain"), [(0.8, 0.6, 1.25), (0.8, 0.8, 1.25), (2.0, 0.5, 0.5)])
def test_pair_pace_gain_includes_wait_for_other_half(paired_s: float, own_half_s: float, gain: float) -> None:
    assert pace_of(1.0, paired_s, own_half_s).gain == pytest.approx(gain)


@pytest.mark.parametrize(("paired_s", "pays"), [(0.95, True), (1.0, True), (1.01, False)])
def test_pair_pace_continues_while_not_slower(paired_s: float, pays: bool) -> None:
    pace = pace_of(1.0, 0.5)

    paired(pace, 16, paired_s, 0.5)

    assert pace.pays is pays


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_pair_pace_of_slower_machine_keeps_gain(slower: float) -> None:
    pace = pace_of(1.0, 0.8, 0.7)

    paired(pace, 200, 0.8 * slower, 0.7 * slower)

    assert pace.gain == pytest.approx(1.25)


def test_pair_pace_ignores_one_slow_step() -> None:
    pace = pace_of(1.0, 0.5)

    pace.took_paired(60.0, 0.5)

    assert (pace.pays, pace.gain) == (True, 2.0)


def test_pair_pace_retries_later_each_time() -> None:
    pace, waited = pace_of(1.0, 2.0), []

    for _ in range(7):
        pays = whole(pace, 2000, 1.0)
        waited.append(pays.index(True) + 1)
        paired(pace, 16, 2.0)

    assert waited == [64, 128, 256, 512, 1024, 1024, 1024]


def test_pair_pace_that_paid_retries_as_at_first() -> None:
    pace = pace_of(1.0, 2.0, 0.5)
    whole(pace, 64, 1.0)
    paired(pace, 16, 0.5)
    assert pace.pays

    paired(pace, 16, 2.0, 0.5)

    assert whole(pace, 64, 1.0) == [False] * 63 + [True]


@given(whole_s=SECONDS, own_half_s=SECONDS)
def test_pair_pace_patience_is_twice_a_step(whole_s: float, own_half_s: float) -> None:
    pace = pace_of(whole_s, whole_s / 2)
    assert pace.patience_s(own_half_s) == max(whole_s, 0.02)
    assert PairPace().patience_s(own_half_s) == max(2.0 * own_half_s, 0.02)


def test_pair_pace_patience_with_controlnets_is_half_a_second() -> None:
    assert pace_of(0.1, 0.05).patience_s(0.05, opens_control=True) == 0.5
    assert pace_of(2.0, 1.0).patience_s(1.0, opens_control=True) == 2.0
