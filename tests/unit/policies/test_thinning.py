"""Test the choice of a thinning, and its steps."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.thinned_steps import ThinnableSteps, check_thinned_steps
from pentimento.policies.thinning import (
    Pressure,
    ThinningMode,
    ThinningOffer,
    ThinningOption,
    choose,
    scaled,
    thinnable,
    thinned_steps,
)

LATE = ThinningOption(40, 5, 0.999)
MILD = ThinningOption(20, 15, 0.99)
HARD = ThinningOption(10, 10, 0.96)
OFFER = ThinningOffer(50, 0, (LATE, MILD, HARD))
CHEAP = replace(OFFER, reused_share=0.5)


@st.composite
def options(draw: st.DrawFn, step_count: int = 50) -> ThinningOption:
    first = draw(st.integers(0, step_count - 1))
    share, spacing = draw(st.floats(0.5, 1.1)), draw(st.just(1.0) | st.floats(1.0, 3.0))
    return ThinningOption(first, draw(st.integers(1, step_count - first)), share, spacing)


offers = st.builds(
    ThinningOffer, st.just(50), st.integers(0, 49), st.lists(options(), max_size=8).map(lambda found: tuple(found))
)
pressures = st.builds(Pressure, st.none() | st.floats(0.0, 10.0), st.none() | st.floats(-10.0, 1000.0), st.booleans())
timed = st.builds(Pressure, st.floats(0.0, 10.0, exclude_min=True), st.floats(-10.0, 1000.0), st.booleans())
modes = st.sampled_from(ThinningMode)


RUNNING = ThinningOffer(50, 15, OFFER.options)
LOADED = Pressure(1.0, 1000.0, overloaded=True)
CHOICES = [
    *((ThinningMode.DEADLINE, OFFER, Pressure(1.0, remaining_s), None) for remaining_s in (50.0, None)),
    *((ThinningMode.DEADLINE, OFFER, Pressure(1.0, remaining_s), LATE) for remaining_s in (49.9, 45.0)),
    *((ThinningMode.DEADLINE, OFFER, Pressure(1.0, remaining_s), MILD) for remaining_s in (44.9, 35.0)),
    *((ThinningMode.DEADLINE, OFFER, Pressure(1.0, remaining_s), HARD) for remaining_s in (34.9, 1.0)),
    (ThinningMode.DEADLINE, OFFER, LOADED, None),
    (ThinningMode.LOAD, OFFER, LOADED, HARD),
    (ThinningMode.LOAD, OFFER, Pressure(1.0, 45.0), LATE),
    # Reused features halve the cost of its steps.
    (ThinningMode.DEADLINE, CHEAP, Pressure(1.0, 25.0), None),
    (ThinningMode.DEADLINE, CHEAP, Pressure(1.0, 24.9), HARD),
    (ThinningMode.LOAD, replace(CHEAP, reused_share=0.4), LOADED, None),
    (ThinningMode.ALWAYS, OFFER, Pressure(1.0, 1000.0), HARD),
    (ThinningMode.ALWAYS, OFFER, Pressure(None), HARD),
    (ThinningMode.ALWAYS, ThinningOffer(50), Pressure(1.0, 1000.0), None),
    # A running request leaves out only steps to come.
    (ThinningMode.DEADLINE, RUNNING, Pressure(1.0, 20.0), MILD),
    (ThinningMode.DEADLINE, ThinningOffer(50, 41, OFFER.options), Pressure(1.0, 1.0), None),
]


def test_choose_by_mode_offer_and_pressure() -> None:
    assert [row for row in CHOICES if choose(*row[:3]) != row[3]] == []
    assert RUNNING.usable == (LATE, MILD)


@given(mode=modes, offer=offers, pressure=pressures)
def test_choose_returns_offered_option_that_saves_steps(
    mode: ThinningMode, offer: ThinningOffer, pressure: Pressure
) -> None:
    chosen = choose(mode, offer, pressure)

    if chosen is not None:
        assert mode is not ThinningMode.OFF
        assert chosen in offer.options
        assert chosen.first_step >= offer.next_step
        assert offer.least_count <= offer.remaining_with(chosen) < offer.remaining_count


@given(offer=offers, pressure=timed)
def test_choose_meets_deadline_if_any_option_does(offer: ThinningOffer, pressure: Pressure) -> None:
    assert pressure.step_s is not None and pressure.remaining_s is not None
    chosen = choose(ThinningMode.DEADLINE, offer, pressure)
    steps = offer.remaining_count if chosen is None else offer.remaining_with(chosen)

    if offer.least_count <= max(pressure.remaining_s, 0.0) / pressure.step_s:
        assert steps <= max(pressure.remaining_s, 0.0) / pressure.step_s
    else:
        assert steps == offer.least_count


@given(mode=modes, offer=offers, pressure=timed, sooner_s=st.floats(0.0, 100.0))
def test_choose_with_less_time_never_keeps_more(
    mode: ThinningMode, offer: ThinningOffer, pressure: Pressure, sooner_s: float
) -> None:
    assert pressure.remaining_s is not None
    less = Pressure(pressure.step_s, pressure.remaining_s - sooner_s, pressure.overloaded)
    with_more, with_less = choose(mode, offer, pressure), choose(mode, offer, less)

    if with_more is not None:
        assert with_less is not None
        assert with_less.share <= with_more.share or with_less.total == offer.least_count + offer.next_step


@given(option=options(), more=st.integers(0, 150))
def test_thinned_steps_count_and_spacing_of_any_schedule(option: ThinningOption, more: int) -> None:
    steps = thinned_steps(option, 50)
    longer = thinned_steps(scaled(option, 50, 50 + more), 50 + more)

    assert len(steps) == option.taken_count
    assert steps[0] == option.first_step
    check_thinned_steps(steps, 50)
    check_thinned_steps(longer, 50 + more)
    gaps = [later - step for step, later in zip(steps, [*steps[1:], 50], strict=True)]
    # Gaps are equal or grow, up to rounding to whole steps.
    assert all(gap <= most + 1 for gap, most in pairwise([*gaps, gaps[-1]]))
    assert option.spacing > 1.0 or max(gaps) - min(gaps) <= 1
    assert len(longer) * 50 >= len(steps) * (50 + more) or len(longer) == 50 + more - longer[0]


SPACINGS: list[tuple[ThinningOption, tuple[int, ...]]] = [
    (ThinningOption(0, 4, 1.0), (0, 12, 25, 37)),
    # 44 * (15 / 22) is a hair below 30 in floating point.
    (ThinningOption(6, 22, 1.0), tuple(range(6, 50, 2))),
    (ThinningOption(0, 4, 1.0, 1.5), (0, 6, 17, 32)),
    (ThinningOption(0, 5, 1.0, 2.0), (0, 2, 8, 18, 32)),
    (ThinningOption(20, 3, 1.0, 1.5), (20, 25, 36)),
    # With eight steps the first ones would coincide.
    (ThinningOption(40, 8, 1.0, 3.0), (40, 41, 42, 43, 44, 45, 46, 47)),
]


def test_thinned_steps_of_larger_spacing_are_early() -> None:
    for option, steps in SPACINGS:
        assert thinned_steps(option, 50) == steps


def test_check_thinned_steps_refuses_other_steps() -> None:
    assert thinned_steps(ThinningOption(20, 10, 1.0), 50) == tuple(range(20, 50, 3))
    for steps in ((), (-1, 2), (3, 3), (4, 3), (3, 50)):
        with pytest.raises(ValueError):
            check_thinned_steps(steps, 50)
    with pytest.raises(ValueError):
        thinned_steps(ThinningOption(45, 6, 1.0), 50)
    with pytest.raises(ValueError):
        scaled(MILD, 50, 49)


THINNABLE: list[tuple[ThinningMode, ThinningOffer, float, float]] = [
    # The fewest of fifty steps are twenty.
    (ThinningMode.LOAD, OFFER, 0.6, 0.04),
    # Steps are left out regardless of the plan.
    (ThinningMode.ALWAYS, OFFER, 0.6, 0.0),
    (ThinningMode.DEADLINE, OFFER, 0.0, 0.0),
    (ThinningMode.OFF, OFFER, 0.0, 0.0),
    (ThinningMode.LOAD, ThinningOffer(50), 0.0, 0.0),
    # Behind step 15 the hard one is no choice: 20 of 35 steps that remain.
    (ThinningMode.LOAD, ThinningOffer(50, 15, (MILD, HARD)), 15 / 35, 0.01),
    # A share above 1 is no gain.
    (ThinningMode.LOAD, ThinningOffer(50, 0, (ThinningOption(10, 10, 1.05),)), 0.6, 0.0),
]


def test_thinnable_share_of_request_under_load() -> None:
    for mode, offer, spare, lost in THINNABLE:
        told = thinnable(mode, offer)

        assert told.request_count == 1
        assert (told.spare_shares, told.lost_shares) == pytest.approx((spare, lost))


def test_thinnable_steps_add_up_and_subtract() -> None:
    steps = ThinnableSteps(4, 3.0, 2.0)

    assert steps + ThinnableSteps(1, 0.5, 0.25) == ThinnableSteps(5, 3.5, 2.25)
    assert steps.since(ThinnableSteps(1, 0.5, 0.25)) == ThinnableSteps(3, 2.5, 1.75)
    assert steps.since(ThinnableSteps(4, 3.0000001, 2.0000001)) == ThinnableSteps(0, 0.0, 0.0)
