"""The emulated engine in virtual time: steps take what was profiled, batches are the real engine's."""

import random
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.devices.profile import Cost
from pentimento.devices.speed import SpeedChanges
from pentimento.domain.errors import Cancelled, PentimentoError
from services.unet_worker.emulation.engine import (
    DeviceCosts,
    EmulatedEngine,
    EmulatedEngineSettings,
    EmulatedJob,
)
from tests.unit.unet_worker.virtual_time import VirtualTimer

KEY = (64, 64, True)
OTHER = (128, 64, True)
STOPPED = Cancelled("CANCELLED", "stopped")


def costs(*steps_s: float, prepare_s: float = 0.0, variance_s2: float = 0.0) -> DeviceCosts:
    """Seconds of a step by batch size."""
    table = tuple(Cost(seconds, variance_s2, 5) for seconds in steps_s)
    return DeviceCosts({KEY: table, OTHER: table}, Cost(prepare_s, 0.0, 1))


@dataclass
class Listener:
    timer: VirtualTimer
    steps: list[int] = field(default_factory=list)
    started_at: float | None = None
    finished_at: float | None = None
    done: EmulatedJob | None = None
    error: PentimentoError | None = None

    def started(self, first_step: int, step_count: int) -> None:
        self.started_at = self.timer.now

    def stepped(self, step: int) -> None:
        self.steps.append(step)

    def finished(self, job: EmulatedJob) -> None:
        assert self.done is None
        self.done, self.finished_at = job, self.timer.now

    def failed(self, error: PentimentoError) -> None:
        self.error = error


class World:
    def __init__(self, device: DeviceCosts, *, late_s: float = 0.0, **settings: Any) -> None:
        self.timer = VirtualTimer(late_s)
        self.batches: list[int] = []
        self.seconds: list[float] = []
        self.late: list[float] = []
        self.engine = EmulatedEngine(
            device, EmulatedEngineSettings(**settings), random.Random(1), self.timer, self._ran
        )

    def _ran(self, request_count: int, seconds: float, late_s: float) -> None:
        self.batches.append(request_count)
        self.seconds.append(seconds)
        self.late.append(late_s)

    def submit(
        self, steps: int, first: int = 0, deadline: float | None = None, key: object = KEY
    ) -> tuple[EmulatedJob, Listener]:
        listener = Listener(self.timer)
        return self.engine.submit(key, first, steps, deadline, listener), listener


def test_a_lone_picture_takes_its_steps_and_its_preparation() -> None:
    world = World(costs(0.5, prepare_s=0.25))

    job, listener = world.submit(4)
    world.timer.run_until(10)

    assert listener.finished_at == pytest.approx(0.25 + 4 * 0.5)
    assert (job.prepared_at, job.device_s) == (pytest.approx(0.25), pytest.approx(2.25))
    assert listener.steps == [1, 2, 3]


def test_a_picture_from_the_cache_takes_only_what_is_left() -> None:
    world = World(costs(0.5))

    _, listener = world.submit(50, first=48)
    world.timer.run_until(10)

    assert listener.finished_at == pytest.approx(1.0)


def test_whoever_comes_during_a_step_joins_at_the_next() -> None:
    world = World(costs(1.0, 1.5))
    _, first = world.submit(3)

    world.timer.run_until(0.5)
    _, second = world.submit(1)
    world.timer.run_until(10)

    assert world.batches == [1, 2, 1]
    assert second.finished_at == pytest.approx(2.5)
    assert first.finished_at == pytest.approx(3.5)


def test_batched_requests_wait_for_the_batch_to_run_empty() -> None:
    world = World(costs(1.0, 1.5), step_batching=False)
    world.submit(3)

    world.timer.run_until(0.5)
    _, second = world.submit(1)
    world.timer.run_until(10)

    assert world.batches == [1, 1, 1, 1]
    assert second.finished_at == pytest.approx(4.0)


def test_a_batch_is_never_larger_than_what_was_measured() -> None:
    world = World(costs(1.0, 1.5))

    for _ in range(5):
        world.submit(1)
    world.timer.run_until(10)

    # The first one ran alone: it came before the others.
    assert world.batches == [1, 2, 2]


def test_other_sizes_never_share_a_step() -> None:
    world = World(costs(1.0, 1.5))

    world.submit(2)
    world.submit(1, key=OTHER)
    world.timer.run_until(10)

    assert world.batches == [1, 1, 1]


def test_the_earlier_deadline_preempts_and_the_other_goes_on_later() -> None:
    world = World(costs(1.0))
    _, aged = world.submit(3)
    world.timer.run_until(0.5)

    _, urgent = world.submit(1, deadline=3.0)
    world.timer.run_until(10)

    assert urgent.finished_at == pytest.approx(2.0)
    assert aged.finished_at == pytest.approx(4.0)


def test_another_size_has_a_turn_before_a_long_picture_ends() -> None:
    world = World(costs(1.0))
    _, long = world.submit(20)
    world.timer.run_until(0.5)

    _, other = world.submit(2, key=OTHER)
    world.timer.run_until(100)

    assert other.finished_at is not None and other.finished_at < 10.0
    assert long.finished_at == pytest.approx(22.0)


def test_what_is_stopped_while_it_runs_ends_at_the_step_boundary() -> None:
    world = World(costs(1.0))
    job, listener = world.submit(5)
    world.timer.run_until(0.5)

    world.engine.stop(job, STOPPED)
    assert listener.error is None
    world.timer.run_until(1.0)

    assert listener.error is STOPPED
    assert (world.engine.running_count, world.engine.waiting_count, world.batches) == (0, 0, [1])


def test_what_is_stopped_while_it_waits_ends_at_once() -> None:
    world = World(costs(1.0))
    world.submit(5)
    job, listener = world.submit(5)

    world.engine.stop(job, STOPPED)

    assert listener.error is STOPPED
    assert world.engine.waiting_count == 0


def test_a_late_wakeup_does_not_slow_the_device() -> None:
    world = World(costs(0.1), late_s=0.03)

    job, listener = world.submit(10)
    world.timer.run_until(10)

    assert job.finished_at == pytest.approx(1.0)
    assert listener.finished_at == pytest.approx(1.03)
    assert world.late == pytest.approx([0.03] * 10)


def test_steps_take_longer_while_the_device_is_slower() -> None:
    world = World(costs(0.1), speed_changes=SpeedChanges(0.5, period_s=1.0))

    job, _ = world.submit(1000)
    world.timer.run_until(200)

    lengths = [len(list(steps)) for _, steps in groupby(world.seconds)]
    assert job.finished_at == pytest.approx(sum(world.seconds))
    assert job.finished_at == pytest.approx(100.0, rel=0.2)
    assert 5 < sum(lengths) / len(lengths) < 20


def test_no_stage_ends_before_it_began_for_who_comes_while_a_step_is_overdue() -> None:
    world = World(costs(1.0, 1.0), late_s=0.5)
    world.submit(2)

    world.timer.run_until(1.25)
    job, _ = world.submit(1)
    world.timer.run_until(10)

    assert world.batches == [1, 2]
    assert job.queued_at <= job.started_at <= job.prepared_at <= job.finished_at


def test_a_device_whose_process_was_stopped_does_not_catch_up() -> None:
    world = World(costs(0.1))
    job, _ = world.submit(2)

    world.timer.now = 5.0  # SIGSTOP
    world.timer.run_until(10)

    assert job.finished_at == pytest.approx(5.1)


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
        step_batching=step_batching,
    )
    pictures = []
    for at, steps in sorted(arrivals):
        world.timer.run_until(at)
        pictures.append(world.submit(steps))
    world.timer.run_until(1000)

    assert all(listener.done is job for job, listener in pictures)
    assert sum(job.device_s for job, _ in pictures) == pytest.approx(sum(world.seconds) + 0.01 * len(pictures))
    assert all(job.queued_at <= job.started_at + 1e-9 for job, _ in pictures) or late_s > 0
    assert max(world.batches) <= 3


@settings(deadline=None)
@given(st.integers(0, 3))
def test_the_same_seed_gives_the_same_times(seed: int) -> None:
    def times() -> list[float]:
        timer = VirtualTimer()
        device = costs(0.2, variance_s2=0.01)
        engine = EmulatedEngine(device, EmulatedEngineSettings(), random.Random(seed), timer)
        listener = [Listener(timer) for _ in range(3)]
        for one in listener:
            engine.submit(KEY, 0, 3, None, one)
        timer.run_until(100)
        return [one.finished_at or 0.0 for one in listener]

    assert times() == times()
