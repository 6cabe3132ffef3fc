"""Which thinning is chosen, and which steps it takes."""

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
    WholeReason,
    choose,
    scaled,
    thinnable,
    thinned_steps,
)

LATE = ThinningOption(40, 5, 0.999)
MILD = ThinningOption(20, 15, 0.99)
HARD = ThinningOption(10, 10, 0.96)
OFFER = ThinningOffer(50, 0, (LATE, MILD, HARD))


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


@pytest.mark.parametrize(
    ("remaining_s", "chosen"),
    [(50.0, None), (None, None), (49.9, LATE), (45.0, LATE), (44.9, MILD), (35.0, MILD), (34.9, HARD), (1.0, HARD)],
)
def test_the_deadline_takes_the_best_thinning_that_is_short_enough(
    remaining_s: float | None, chosen: ThinningOption | None
) -> None:
    assert choose(ThinningMode.DEADLINE, OFFER, Pressure(1.0, remaining_s)) == chosen


def test_load_takes_the_fewest_steps_and_only_where_that_is_the_mode() -> None:
    loaded = Pressure(1.0, 1000.0, overloaded=True)

    assert choose(ThinningMode.LOAD, OFFER, loaded) == HARD
    assert choose(ThinningMode.DEADLINE, OFFER, loaded) is None
    assert choose(ThinningMode.LOAD, OFFER, Pressure(1.0, 45.0)) == LATE


def test_always_takes_the_fewest_steps_though_there_is_time() -> None:
    assert choose(ThinningMode.ALWAYS, OFFER, Pressure(1.0, 1000.0)) == HARD
    assert choose(ThinningMode.ALWAYS, OFFER, Pressure(None)) == HARD
    assert choose(ThinningMode.ALWAYS, ThinningOffer(50), Pressure(1.0, 1000.0)) is None


def test_of_a_picture_that_runs_only_what_lies_before_it_is_left_out() -> None:
    running = ThinningOffer(50, 15, OFFER.options)

    assert running.usable == (LATE, MILD)
    assert choose(ThinningMode.DEADLINE, running, Pressure(1.0, 20.0)) == MILD
    assert choose(ThinningMode.DEADLINE, ThinningOffer(50, 41, OFFER.options), Pressure(1.0, 1.0)) is None


@given(mode=modes, offer=offers, pressure=pressures)
def test_what_is_chosen_was_offered_and_leaves_steps_out(
    mode: ThinningMode, offer: ThinningOffer, pressure: Pressure
) -> None:
    chosen = choose(mode, offer, pressure)

    if chosen is not None:
        assert mode is not ThinningMode.OFF
        assert chosen in offer.options
        assert chosen.first_step >= offer.next_step
        assert offer.least_count <= offer.remaining_with(chosen) < offer.remaining_count


@given(offer=offers, pressure=timed)
def test_a_deadline_that_can_be_met_by_a_thinning_is(offer: ThinningOffer, pressure: Pressure) -> None:
    assert pressure.step_s is not None and pressure.remaining_s is not None
    chosen = choose(ThinningMode.DEADLINE, offer, pressure)
    steps = offer.remaining_count if chosen is None else offer.remaining_with(chosen)

    if offer.least_count <= max(pressure.remaining_s, 0.0) / pressure.step_s:
        assert steps <= max(pressure.remaining_s, 0.0) / pressure.step_s
    else:
        assert steps == offer.least_count


@given(mode=modes, offer=offers, pressure=timed, sooner_s=st.floats(0.0, 100.0))
def test_less_time_never_costs_less(
    mode: ThinningMode, offer: ThinningOffer, pressure: Pressure, sooner_s: float
) -> None:
    assert pressure.remaining_s is not None
    less = Pressure(pressure.step_s, pressure.remaining_s - sooner_s, pressure.overloaded)
    with_more, with_less = choose(mode, offer, pressure), choose(mode, offer, less)

    if with_more is not None:
        assert with_less is not None
        assert with_less.share <= with_more.share or with_less.total == offer.least_count + offer.next_step


@given(option=options(), more=st.integers(0, 150))
def test_thinned_steps_are_as_many_as_said_and_lie_no_further_apart_in_longer_schedules(
    option: ThinningOption, more: int
) -> None:
    steps = thinned_steps(option, 50)
    longer = thinned_steps(scaled(option, 50, 50 + more), 50 + more)

    assert len(steps) == option.taken_count
    assert steps[0] == option.first_step
    check_thinned_steps(steps, 50)
    check_thinned_steps(longer, 50 + more)
    gaps = [later - step for step, later in zip(steps, [*steps[1:], 50], strict=True)]
    # Evenly spaced, or further and further apart; both but for what is lost in whole steps.
    assert all(gap <= most + 1 for gap, most in pairwise([*gaps, gaps[-1]]))
    assert option.spacing > 1.0 or max(gaps) - min(gaps) <= 1
    assert len(longer) * 50 >= len(steps) * (50 + more) or len(longer) == 50 + more - longer[0]


@pytest.mark.parametrize(
    ("option", "steps"),
    [
        (ThinningOption(0, 4, 1.0), (0, 12, 25, 37)),
        # 44 * (15 / 22) is a hair below 30 in floating point.
        (ThinningOption(6, 22, 1.0), tuple(range(6, 50, 2))),
        (ThinningOption(0, 4, 1.0, 1.5), (0, 6, 17, 32)),
        (ThinningOption(0, 5, 1.0, 2.0), (0, 2, 8, 18, 32)),
        (ThinningOption(20, 3, 1.0, 1.5), (20, 25, 36)),
        # So many that the first ones would fall together.
        (ThinningOption(40, 8, 1.0, 3.0), (40, 41, 42, 43, 44, 45, 46, 47)),
    ],
)
def test_with_a_larger_spacing_more_of_the_steps_are_early_ones(option: ThinningOption, steps: tuple[int, ...]) -> None:
    assert thinned_steps(option, 50) == steps


def test_steps_that_are_none_of_the_schedule_are_refused() -> None:
    assert thinned_steps(ThinningOption(20, 10, 1.0), 50) == tuple(range(20, 50, 3))
    for steps in ((), (-1, 2), (3, 3), (4, 3), (3, 50)):
        with pytest.raises(ValueError):
            check_thinned_steps(steps, 50)
    with pytest.raises(ValueError):
        thinned_steps(ThinningOption(45, 6, 1.0), 50)
    with pytest.raises(ValueError):
        scaled(MILD, 50, 49)


def test_clients_are_told_why_all_steps_are_taken_in_these_words() -> None:
    assert {reason.value for reason in WholeReason} == {
        "THINNING_OFF",
        "REPLAYED",
        "BINDING_STEPS",
        "QUALITY_ASKED",
        "PROFILE_MISSING",
        "PROFILE_PROMISES_LESS",
        "HIT_UNMEASURED",
        "LORAS_UNMEASURED",
        "LORAS_LATE",
        "CONTROLNETS_UNMEASURED",
        "RESIDUALS_PIPELINED",
        "IMAGE_UNMEASURED",
        "SCHEDULER_UNMEASURED",
        "GUIDANCE_UNMEASURED",
        "STEPS_UNMEASURED",
        "NOTHING_ALLOWED",
    }


def test_operators_name_the_modes_in_these_words() -> None:
    assert [mode.value for mode in ThinningMode] == ["off", "deadline", "load", "always"]


@pytest.mark.parametrize(
    ("mode", "offer", "spare", "lost"),
    [
        # The fewest of fifty steps are twenty.
        (ThinningMode.LOAD, OFFER, 0.6, 0.04),
        # Whatever a plan says, they are left out.
        (ThinningMode.ALWAYS, OFFER, 0.6, 0.0),
        (ThinningMode.DEADLINE, OFFER, 0.0, 0.0),
        (ThinningMode.OFF, OFFER, 0.0, 0.0),
        (ThinningMode.LOAD, ThinningOffer(50), 0.0, 0.0),
        # Behind step 15 the hard one is no choice: 20 of 35 steps that remain.
        (ThinningMode.LOAD, ThinningOffer(50, 15, (MILD, HARD)), 15 / 35, 0.01),
        # What kept more than all is no gain.
        (ThinningMode.LOAD, ThinningOffer(50, 0, (ThinningOption(10, 10, 1.05),)), 0.6, 0.0),
    ],
)
def test_plans_are_told_what_of_a_request_s_steps_may_be_left_out_under_load(
    mode: ThinningMode, offer: ThinningOffer, spare: float, lost: float
) -> None:
    told = thinnable(mode, offer)

    assert told.request_count == 1
    assert (told.spare_shares, told.lost_shares) == pytest.approx((spare, lost))


def test_what_may_be_left_out_is_added_up_and_told_since_then() -> None:
    steps = ThinnableSteps(4, 3.0, 2.0)

    assert steps + ThinnableSteps(1, 0.5, 0.25) == ThinnableSteps(5, 3.5, 2.25)
    assert steps.since(ThinnableSteps(1, 0.5, 0.25)) == ThinnableSteps(3, 2.5, 1.75)
    assert steps.since(ThinnableSteps(4, 3.0000001, 2.0000001)) == ThinnableSteps(0, 0.0, 0.0)
