"""Test the emulated device in virtual time, as a worker plays it: steps take their profiled seconds, and the engine
forms batches. `tests/lab/simulator/test_device.py` tests it as the simulator plays it.
"""

from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.emulation.costs import ModelCosts
from lab.emulation.speed import SpeedChanges
from tests.lab.emulation.device_world import KEY, OTHER, World, costs, done


@dataclass(frozen=True)
class Arrival:
    """Submit an image of `steps` steps."""

    steps: int
    at_s: float = 0.0
    deadline: float | None = None
    key: object = KEY


ONE, TWO = costs(1.0), costs(1.0, 1.5)
# The device's costs and options, arrivals in order, and expected: when each image ends, and the batch of each step.
SCHEDULES: dict[str, tuple[ModelCosts, dict[str, Any], list[Arrival], list[float], list[int]]] = {
    "one image": (costs(0.5, prepare_s=0.25), {}, [Arrival(4)], [2.25], [1] * 4),
    "an arrival during a step joins at the next": (TWO, {}, [Arrival(3), Arrival(1, 0.5)], [3.5, 2.5], [1, 2, 1]),
    "a batch of requests runs until it is empty": (
        TWO,
        {"steps": False},
        [Arrival(3), Arrival(1, 0.5)],
        [3.0, 4.0],
        [1] * 4,
    ),
    "requests of a batch end together": (TWO, {"steps": False}, [Arrival(3), Arrival(1)], [4.5, 4.5], [2, 2, 2]),
    "batches have at most the measured size": (TWO, {}, [Arrival(1)] * 5, [1.5, 1.5, 3.0, 3.0, 4.0], [2, 2, 1]),
    "different sizes never share a step": (TWO, {}, [Arrival(2), Arrival(1, key=OTHER)], [3.0, 2.0], [1, 1, 1]),
    "an earlier deadline preempts": (ONE, {}, [Arrival(3), Arrival(1, 0.5, deadline=3.0)], [4.0, 2.0], [1] * 4),
    # It saves half of each second step of the long one: its first step was never measured and comes at 2, its second
    # when a whole one is saved again.
    "another size has a turn before a long image ends": (
        ONE,
        {},
        [Arrival(20), Arrival(2, 0.5, key=OTHER)],
        [22.0, 7.0],
        [1] * 22,
    ),
}


@pytest.mark.parametrize("case", SCHEDULES.values(), ids=SCHEDULES)
def test_images_end_as_scheduled(case: tuple[Any, ...]) -> None:
    device, options, arrivals, finished, batches = case
    for each_step in (True, False):
        world = World(device, each_step=each_step, **options)

        for arrival in arrivals:
            if arrival.at_s:
                world.timers.run_until(arrival.at_s)
            world.submit(arrival.steps, arrival.deadline, arrival.key)
        world.timers.run_until(100)

        assert [image.finished_at for image in world.pictures] == pytest.approx(finished), each_step
        assert not each_step or world.batches == batches


def test_finished_image_reports_its_times_and_remaining_steps() -> None:
    world = World(costs(0.5, prepare_s=0.25))

    image = world.submit(4)
    world.timers.run_until(10)

    assert (done(image).prepared_s, done(image).device_s) == (pytest.approx(0.25), pytest.approx(2.25))
    assert image.left == [3, 2, 1, 0]


def test_images_are_prepared_one_by_one() -> None:
    world = World(costs(1.0, 1.0, prepare_s=0.25))

    images = [world.submit(1), world.submit(1)]
    world.timers.run_until(10)

    assert [(done(one).began_s, done(one).prepared_s) for one in images] == [(0.0, 0.25), (0.25, 0.5)]
    assert [done(one).denoised_s for one in images] == [1.5, 1.5]


# Steps of each image, a step's seconds, and when each place is yielded, once.
YIELDS = [([1], 1.0, [0.95]), ([3], 1.0, [2.95]), ([1], 0.02, [0.0]), ([5], 0.02, [0.05]), ([3, 1], 1.0, [2.95, 0.95])]


def test_place_is_yielded_once_before_the_end() -> None:
    """The lead is the time that the next image is on its way."""
    for (steps, step_s, at_s), each_step in product(YIELDS, (True, False)):
        world = World(costs(step_s, step_s), each_step=each_step)

        images = [world.submit(count) for count in steps]
        world.timers.run_until(10)

        assert [image.yielded_at for image in images] == [[pytest.approx(at)] for at in at_s], (steps, each_step)


def test_place_not_yielded_in_time_is_with_last_step() -> None:
    """Four steps were left, and after this one none is: three are left out."""
    world = World(costs(1.0, finish_s=1.0))
    image, world.left_out = world.submit(4), 3

    world.timers.run_until(10)

    assert (image.yielded_at, image.finished_at) == ([pytest.approx(1.0)], pytest.approx(2.0))


@pytest.mark.parametrize("options", [{"steps": False}, {"credit_batches": 2}])
def test_devices_with_whole_batches_yield_no_places(options: dict[str, Any]) -> None:
    world = World(costs(1.0), **options)

    image = world.submit(1)
    world.timers.run_until(10)

    assert (image.yielded_at, image.finished_at) == ([], pytest.approx(1.0))


def test_stopped_running_image_ends_at_step_boundary() -> None:
    world = World(costs(1.0))
    image = world.submit(5)
    world.timers.run_until(0.5)

    world.device.stop(image)
    assert image.stopped_at is None
    world.timers.run_until(1.0)

    assert image.stopped_at == 1.0
    assert (world.device.running_count, world.device.waiting_count, world.batches) == (0, 0, [1])


def test_stopped_waiting_image_ends_at_once() -> None:
    world = World(costs(1.0))
    world.submit(5)
    image = world.submit(5)

    world.device.stop(image)

    assert image.stopped_at == 0.0
    assert world.device.waiting_count == 1


def test_late_wakeup_does_not_slow_device() -> None:
    world = World(costs(0.1), late_s=0.03)

    image = world.submit(10)
    world.timers.run_until(10)

    assert done(image).denoised_s == pytest.approx(1.0)
    assert image.finished_at == pytest.approx(1.03)
    assert world.late == pytest.approx([0.03] * 10)


def test_slower_device_takes_longer_steps() -> None:
    world = World(costs(0.1), speed_changes=SpeedChanges(0.5, period_s=1.0))

    image = world.submit(1000)
    world.timers.run_until(200)

    lengths = [len(list(steps)) for _, steps in groupby(world.seconds)]
    assert done(image).denoised_s == pytest.approx(sum(world.seconds))
    assert done(image).denoised_s == pytest.approx(100.0, rel=0.2)
    assert 5 < sum(lengths) / len(lengths) < 20


def test_arrival_during_overdue_step_has_ordered_stages() -> None:
    world = World(costs(1.0, 1.0), late_s=0.5)
    world.submit(2)

    world.timers.run_until(1.25)
    image = world.submit(1)
    world.timers.run_until(10)

    assert world.batches == [1, 2]
    job = done(image)
    assert job.arrived_s <= job.began_s <= job.prepared_s <= job.denoised_s


def test_device_of_stopped_process_does_not_catch_up() -> None:
    world = World(costs(0.1))
    image = world.submit(2)
    world.timers.run_until(0.05)

    world.timers.now = 5.0  # SIGSTOP
    world.timers.run_until(10)

    assert done(image).denoised_s == pytest.approx(5.1)


@pytest.mark.parametrize(("wanted", "limit"), [(0, 1), (3, 3), (60, 4)])
def test_plan_bounds_batches_within_measured_sizes(wanted: int, limit: int) -> None:
    world = World(costs(1.0, 1.0, 1.0, 1.0))

    world.device.assign(costs(1.0, 1.0, 1.0, 1.0), wanted)

    assert world.device.limit(KEY) == limit


def test_images_keep_their_batches_before_a_switch() -> None:
    world = World(costs(1.0, 1.5))
    world.device.hold()
    world.device.assign(replace(costs(1.0), model="other"), 1)

    world.submit(1)
    world.submit(1)
    world.timers.run_until(10.0)

    assert world.batches == [2]


def test_lost_device_reports_nothing_and_loads_nothing() -> None:
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
def test_device_is_busy_for_its_images_seconds(
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

    jobs = [done(image) for image in world.pictures]
    assert sum(job.device_s for job in jobs) == pytest.approx(sum(world.seconds) + 0.01 * len(jobs))
    assert world.device.busy_s == pytest.approx(sum(job.device_s for job in jobs))
    assert all(job.arrived_s <= job.began_s for job in jobs)
    assert max(world.batches) <= 3


@settings(deadline=None)
@given(st.integers(0, 3))
def test_same_seed_gives_same_times(seed: int) -> None:
    def times() -> list[float | None]:
        world = World(costs(0.2, variance_s2=0.01), seed=seed)
        images = [world.submit(3) for _ in range(3)]
        world.timers.run_until(100)
        return [image.finished_at for image in images]

    assert times() == times()


# Steps end whole eighths of a second after an arrival, and no other image arrives at such an instant: whether that is
# before or after the next step begins would be chance.
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
    """Steps that a simulation skips change nothing: images end at the same times as with every step."""

    def ends(each_step: bool) -> list[float | None]:
        world = World(costs(0.25, 0.5, 0.75, prepare_s=0.125), each_step=each_step, preempt=preempt, steps=steps)
        for at, step_count, key in sorted(arrivals, key=lambda arrival: arrival[0]):
            world.timers.run_until(at)
            world.submit(step_count, key=key)
        world.timers.run_until(1000)
        return [image.finished_at for image in world.pictures]

    assert ends(each_step=False) == pytest.approx(ends(each_step=True))
