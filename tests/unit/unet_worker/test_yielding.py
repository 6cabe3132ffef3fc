"""A picture yields its place once, as long before its end as the next one is on its way."""

from services.unet_worker.attempts.yielding import PlaceWatch


def yields_at(first_step: int, step_count: int, ended_at: list[float]) -> list[int]:
    watch = PlaceWatch(first_step, step_count, 0.0)
    return [step for step, now in enumerate(ended_at, start=first_step + 1) if watch.yields(step, now)]


def test_slow_steps_yield_before_the_last_one() -> None:
    assert yields_at(0, 10, [0.1 * step for step in range(1, 11)]) == [9]


def test_fast_steps_yield_as_many_before_the_end_as_take_the_way_of_the_next() -> None:
    assert yields_at(0, 50, [0.01 * step for step in range(1, 51)]) in ([44], [45])


def test_a_picture_of_one_step_yields_with_it() -> None:
    assert yields_at(49, 50, [0.2]) == [50]


def test_steps_that_were_noticed_together_do_not_yield_a_picture_that_has_just_begun() -> None:
    late = [0.1, 0.5, 0.5, 0.50001, 0.50002, *(0.1 * step for step in range(6, 11))]

    assert yields_at(0, 10, late) == [9]


def test_thinned_steps_count_as_they_are_taken() -> None:
    """From step 4 on the steps 4, 7 and 10 of twelve."""
    watch = PlaceWatch(0, 12, 0.0, (4, 7, 10))

    assert [step for number, step in enumerate((1, 2, 3, 4, 7, 10, 12), 1) if watch.yields(step, 0.1 * number)] == [10]
