"""The emulated device in virtual time, as a worker plays it: steps take what was profiled, batches are the real
engine's. `tests/lab/simulator/test_device.py` has it as the simulator plays it."""

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.emulation.speed import SpeedChanges
from tests.lab.emulation.device_world import KEY, OTHER, World, costs, done


def test_a_lone_picture_takes_its_steps_and_its_preparation() -> None:
    world = World(costs(0.5, prepare_s=0.25))

    picture = world.submit(4)
    world.timers.run_until(10)

    assert picture.finished_at == pytest.approx(0.25 + 4 * 0.5)
    assert (done(picture).prepared_s, done(picture).device_s) == (pytest.approx(0.25), pytest.approx(2.25))
    assert picture.left == [3, 2, 1, 0]


def test_newcomers_are_prepared_one_after_the_other() -> None:
    world = World(costs(1.0, 1.0, prepare_s=0.25))

    pictures = [world.submit(1), world.submit(1)]
    world.timers.run_until(10)

    assert [(done(one).began_s, done(one).prepared_s) for one in pictures] == [(0.0, 0.25), (0.25, 0.5)]
    assert [done(one).denoised_s for one in pictures] == [1.5, 1.5]


def test_whoever_comes_during_a_step_joins_at_the_next() -> None:
    world = World(costs(1.0, 1.5))
    first = world.submit(3)

    world.timers.run_until(0.5)
    second = world.submit(1)
    world.timers.run_until(10)

    assert world.batches == [1, 2, 1]
    assert second.finished_at == pytest.approx(2.5)
    assert first.finished_at == pytest.approx(3.5)


def test_batched_requests_wait_for_the_batch_to_run_empty() -> None:
    world = World(costs(1.0, 1.5), steps=False)
    world.submit(3)

    world.timers.run_until(0.5)
    second = world.submit(1)
    world.timers.run_until(10)

    assert world.batches == [1, 1, 1, 1]
    assert second.finished_at == pytest.approx(4.0)


@pytest.mark.parametrize("each_step", [True, False])
@pytest.mark.parametrize(("steps", "step_s", "at_s"), [(1, 1.0, 0.95), (3, 1.0, 2.95), (1, 0.02, 0.0), (5, 0.02, 0.05)])
def test_a_place_is_yielded_once_as_long_before_the_end_as_the_next_picture_is_on_its_way(
    each_step: bool, steps: int, step_s: float, at_s: float
) -> None:
    world = World(costs(step_s), each_step=each_step)

    picture = world.submit(steps)
    world.timers.run_until(10)

    assert picture.yielded_at == [pytest.approx(at_s)]


@pytest.mark.parametrize("each_step", [True, False])
def test_those_of_a_batch_yield_as_each_of_them_ends(each_step: bool) -> None:
    world = World(costs(1.0, 1.0), each_step=each_step)

    pictures = [world.submit(3), world.submit(1)]
    world.timers.run_until(10)

    assert [picture.yielded_at for picture in pictures] == [[pytest.approx(2.95)], [pytest.approx(0.95)]]


def test_a_place_that_was_not_yielded_in_time_is_with_the_last_step() -> None:
    """Four steps were left, and after this one none is: three are left out."""
    world = World(costs(1.0, finish_s=1.0))
    picture, world.left_out = world.submit(4), 3

    world.timers.run_until(10)

    assert (picture.yielded_at, picture.finished_at) == ([pytest.approx(1.0)], pytest.approx(2.0))


@pytest.mark.parametrize("options", [{"steps": False}, {"credit_batches": 2}])
def test_devices_that_hold_whole_batches_of_requests_yield_no_places(options: dict[str, Any]) -> None:
    world = World(costs(1.0), **options)

    picture = world.submit(1)
    world.timers.run_until(10)

    assert (picture.yielded_at, picture.finished_at) == ([], pytest.approx(1.0))


@pytest.mark.parametrize("each_step", [True, False])
def test_batched_requests_end_together(each_step: bool) -> None:
    world = World(costs(1.0, 1.5), steps=False, each_step=each_step)

    pictures = [world.submit(3), world.submit(1)]
    world.timers.run_until(10)

    assert [picture.finished_at for picture in pictures] == [pytest.approx(4.5)] * 2


def test_a_batch_is_never_larger_than_what_was_measured() -> None:
    world = World(costs(1.0, 1.5))

    for _ in range(5):
        world.submit(1)
    world.timers.run_until(10)

    assert world.batches == [2, 2, 1]


def test_other_sizes_never_share_a_step() -> None:
    world = World(costs(1.0, 1.5))

    world.submit(2)
    world.submit(1, key=OTHER)
    world.timers.run_until(10)

    assert world.batches == [1, 1, 1]


def test_the_earlier_deadline_preempts_and_the_other_goes_on_later() -> None:
    world = World(costs(1.0))
    aged = world.submit(3)
    world.timers.run_until(0.5)

    urgent = world.submit(1, deadline=3.0)
    world.timers.run_until(10)

    assert urgent.finished_at == pytest.approx(2.0)
    assert aged.finished_at == pytest.approx(4.0)


@pytest.mark.parametrize("each_step", [True, False])
def test_another_size_has_a_turn_before_a_long_picture_ends(each_step: bool) -> None:
    world = World(costs(1.0), each_step=each_step)
    long = world.submit(20)
    world.timers.run_until(0.5)

    other = world.submit(2, key=OTHER)
    world.timers.run_until(100)

    # It saves half of each second step of the long one: its first step was never measured and comes at 2, its second
    # when a whole one is saved again.
    assert other.finished_at == pytest.approx(7.0)
    assert long.finished_at == pytest.approx(22.0)


def test_what_is_stopped_while_it_runs_ends_at_the_step_boundary() -> None:
    world = World(costs(1.0))
    picture = world.submit(5)
    world.timers.run_until(0.5)

    world.device.stop(picture)
    assert picture.stopped_at is None
    world.timers.run_until(1.0)

    assert picture.stopped_at == 1.0
    assert (world.device.running_count, world.device.waiting_count, world.batches) == (0, 0, [1])


def test_what_is_stopped_while_it_waits_ends_at_once() -> None:
    world = World(costs(1.0))
    world.submit(5)
    picture = world.submit(5)

    world.device.stop(picture)

    assert picture.stopped_at == 0.0
    assert world.device.waiting_count == 1


def test_a_late_wakeup_does_not_slow_the_device() -> None:
    world = World(costs(0.1), late_s=0.03)

    picture = world.submit(10)
    world.timers.run_until(10)

    assert done(picture).denoised_s == pytest.approx(1.0)
    assert picture.finished_at == pytest.approx(1.03)
    assert world.late == pytest.approx([0.03] * 10)


def test_steps_take_longer_while_the_device_is_slower() -> None:
    world = World(costs(0.1), speed_changes=SpeedChanges(0.5, period_s=1.0))

    picture = world.submit(1000)
    world.timers.run_until(200)

    lengths = [len(list(steps)) for _, steps in groupby(world.seconds)]
    assert done(picture).denoised_s == pytest.approx(sum(world.seconds))
    assert done(picture).denoised_s == pytest.approx(100.0, rel=0.2)
    assert 5 < sum(lengths) / len(lengths) < 20


def test_no_stage_ends_before_it_began_for_who_comes_while_a_step_is_overdue() -> None:
    world = World(costs(1.0, 1.0), late_s=0.5)
    world.submit(2)

    world.timers.run_until(1.25)
    picture = world.submit(1)
    world.timers.run_until(10)

    assert world.batches == [1, 2]
    job = done(picture)
    assert job.arrived_s <= job.began_s <= job.prepared_s <= job.denoised_s


def test_a_device_whose_process_was_stopped_does_not_catch_up() -> None:
    world = World(costs(0.1))
    picture = world.submit(2)
    world.timers.run_until(0.05)

    world.timers.now = 5.0  # SIGSTOP
    world.timers.run_until(10)

    assert done(picture).denoised_s == pytest.approx(5.1)


def test_another_model_is_loaded_once_what_is_here_is_done_and_nobody_holds_on_to_it() -> None:
    world = World(costs(1.0, 1.5, finish_s=0.5))
    world.submit(1)
    world.device.hold()

    world.device.assign(replace(costs(2.0, load_s=3.0), model="other"), 1)
    world.timers.run_until(4.0)
    assert (world.device.model, world.device.costs.model) == ("other", "model")
    world.device.release()
    world.timers.run_until(10.0)

    assert world.reports == [(0.0, "model", True), (7.0, "other", False)]


def test_a_model_that_is_wanted_while_another_one_is_loaded_is_loaded_after_it() -> None:
    world = World(costs(1.0))
    world.device.assign(replace(costs(1.0, load_s=3.0), model="other"), 1)
    world.timers.run_until(1.0)

    world.device.assign(costs(1.0, load_s=2.0), 1)
    world.timers.run_until(10.0)

    assert world.reports == [(0.0, "model", True), (1.0, "model", True), (5.0, "model", False)]


def test_a_switch_that_waits_for_what_is_here_is_called_off() -> None:
    world = World(costs(1.0, 1.5))
    world.submit(3)
    world.timers.run_until(0.5)

    world.device.assign(replace(costs(1.0, load_s=3.0), model="other"), 1)
    world.device.assign(costs(1.0, 1.5), 1)
    world.timers.run_until(10.0)

    assert world.reports == [(0.5, "model", True), (0.5, "model", False)]
    assert world.device.limit(KEY) == 1


@pytest.mark.parametrize(("wanted", "limit"), [(0, 1), (3, 3), (60, 4)])
def test_a_plan_bounds_the_batches_and_never_beyond_what_was_measured(wanted: int, limit: int) -> None:
    world = World(costs(1.0, 1.0, 1.0, 1.0))

    world.device.assign(costs(1.0, 1.0, 1.0, 1.0), wanted)

    assert world.device.limit(KEY) == limit


def test_what_is_here_is_painted_in_its_own_batches_while_another_model_is_wanted() -> None:
    world = World(costs(1.0, 1.5))
    world.device.hold()
    world.device.assign(replace(costs(1.0), model="other"), 1)

    world.submit(1)
    world.submit(1)
    world.timers.run_until(10.0)

    assert world.batches == [2]


def test_a_process_that_dies_tells_of_nobody_and_loads_nothing() -> None:
    world = World(costs(1.0, finish_s=5.0))
    first = world.submit(1)
    world.timers.run_until(2.0)
    second = world.submit(1)
    world.timers.run_until(2.5)
    world.device.assign(replace(costs(1.0), model="other"), 1)

    lost = world.device.lose()
    world.timers.run_until(100.0)

    assert {job.owner for job in lost} == {first, second}
    assert (first.done, second.done, world.device.costs.model) == (None, None, "model")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 6)), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
    st.floats(0, 0.2),
)
def test_all_that_come_are_painted_in_the_time_that_the_device_was_busy(
    arrivals: list[tuple[float, int]], preempt: bool, step_batching: bool, late_s: float
) -> None:
    world = World(
        costs(0.2, 0.3, 0.35, prepare_s=0.01, variance_s2=0.001),
        late_s=late_s,
        preempt=preempt,
        steps=step_batching,
    )
    for at, steps in sorted(arrivals):
        world.timers.run_until(at)
        world.submit(steps)
    world.timers.run_until(1000)

    jobs = [done(picture) for picture in world.pictures]
    assert sum(job.device_s for job in jobs) == pytest.approx(sum(world.seconds) + 0.01 * len(jobs))
    assert world.device.busy_s == pytest.approx(sum(job.device_s for job in jobs))
    assert all(job.arrived_s <= job.began_s for job in jobs)
    assert max(world.batches) <= 3


@settings(deadline=None)
@given(st.integers(0, 3))
def test_the_same_seed_gives_the_same_times(seed: int) -> None:
    def times() -> list[float | None]:
        world = World(costs(0.2, variance_s2=0.01), seed=seed)
        pictures = [world.submit(3) for _ in range(3)]
        world.timers.run_until(100)
        return [picture.finished_at for picture in pictures]

    assert times() == times()


# Steps end whole eighths of a second after somebody came, and nobody else comes at such an instant: it would be chance
# whether that is before or after the next step begins.
between_steps = st.integers(0, 365).map(lambda number: number * 0.0137)


@given(
    st.lists(st.tuples(between_steps, st.integers(1, 6), st.sampled_from([KEY, OTHER])), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None)
def test_segments_end_when_single_steps_do(
    arrivals: list[tuple[float, int, object]], preempt: bool, steps: bool
) -> None:
    """What a simulation skips changes nothing: whoever hears of each step sees the same ends."""

    def ends(each_step: bool) -> list[float | None]:
        world = World(costs(0.25, 0.5, 0.75, prepare_s=0.125), each_step=each_step, preempt=preempt, steps=steps)
        for at, step_count, key in sorted(arrivals, key=lambda arrival: arrival[0]):
            world.timers.run_until(at)
            world.submit(step_count, key=key)
        world.timers.run_until(1000)
        return [picture.finished_at for picture in world.pictures]

    assert ends(each_step=False) == pytest.approx(ends(each_step=True))
