"""A picture yields its place once, as long before its end as the next one is on its way."""

import pytest

from services.unet_worker.attempts.yielding import PlaceWatch, StepPace


def first_yield(first_step: int, step_count: int, ended_at: list[float]) -> tuple[int, float]:
    """The step after whose end it knows, and in how many seconds it is to be."""
    watch = PlaceWatch(first_step, step_count, 0.0, StepPace())
    found = ((step, watch.yields_in_s(step, now)) for step, now in enumerate(ended_at, start=first_step + 1))
    return next((step, pytest.approx(after_s)) for step, after_s in found if after_s is not None)


def test_slow_steps_yield_during_the_last_one() -> None:
    assert first_yield(0, 10, [0.1 * step for step in range(1, 11)]) == (9, 0.05)


def test_fast_steps_yield_as_many_before_the_end_as_take_the_way_of_the_next() -> None:
    assert first_yield(0, 50, [0.015 * step for step in range(1, 51)]) == (46, 0.01)


def test_the_only_step_of_a_worker_s_first_picture_yields_with_its_end() -> None:
    assert first_yield(49, 50, [0.2]) == (50, 0.0)


def test_a_picture_of_one_step_yields_as_long_before_its_end_as_that_of_the_one_before_took() -> None:
    pace = StepPace()
    PlaceWatch(0, 1, 0.0, pace).yields_in_s(1, 0.2)

    watch = PlaceWatch(0, 1, 10.0, pace)

    assert watch.yields_in_s(0, 10.0) == pytest.approx(0.15)


def test_a_picture_of_several_steps_does_not_yield_as_it_begins() -> None:
    pace = StepPace()
    PlaceWatch(0, 1, 0.0, pace).yields_in_s(1, 0.2)

    assert PlaceWatch(0, 4, 10.0, pace).yields_in_s(0, 10.0) is None


def test_steps_that_were_noticed_together_do_not_yield_a_picture_that_has_just_begun() -> None:
    late = [0.1, 0.5, 0.5, 0.50001, 0.50002, *(0.1 * step for step in range(6, 11))]

    assert first_yield(0, 10, late)[0] == 9


def test_thinned_steps_count_as_they_are_taken() -> None:
    """From step 4 on the steps 4, 7 and 10 of twelve."""
    watch = PlaceWatch(0, 12, 0.0, StepPace(), (4, 7, 10))

    told = [watch.yields_in_s(step, 0.1 * number) for number, step in enumerate((1, 2, 3, 4, 7, 10), 1)]

    assert told == [None, None, None, None, None, pytest.approx(0.05)]
