"""Any order of events: no accepted request is lost, none is committed twice, each ends once, bounds are kept."""

import random
from collections.abc import Callable

import pytest

from pentimento.dataplane import events
from pentimento.dataplane.events import FailureKind
from pentimento.policies.adapter_needs import NO_NEEDS
from tests.unit.dataplane.breaking_world import BreakingWorld
from tests.unit.dataplane.world import HEAVY, LIGHT, STYLES, Wish

PROFILES = events.ProfilesReceived((events.SpeedProfile(LIGHT, ((1, 1.0),)), events.SpeedProfile(HEAVY, ((1, 6.0),))))
STEP_COUNT = 150


class Walk:
    """Steps that never fail by themselves, drawn by weight."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.world = BreakingWorld(fall_back=rng.random() < 0.8)
        if rng.random() < 0.7:
            self._learn_speeds()
        self._steps: dict[Callable[[], None], int] = {
            self._arrive: 6,
            self._deliver: 20,
            self._end_attempt: 6,
            self._report: 5,
            self._repeat: 2,
            self._pass_time: 3,
            self._cancel: 1,
            self._lose: 2,
            self._begin: 1,
            self._yield_place: 3,
            self._start_frontdoor: 1,
            self._break: 2,
            self._learn_speeds: 1,
        }

    def _learn_speeds(self) -> None:
        self.world.send(PROFILES)

    def run(self) -> None:
        steps, weights = list(self._steps), list(self._steps.values())
        for step in self._rng.choices(steps, weights, k=STEP_COUNT):
            step()
        self.world.settle()
        self.world.check_at_rest()

    def _arrive(self) -> None:
        rng = self._rng
        cascade = rng.choice([(), (LIGHT, HEAVY), (LIGHT, HEAVY, HEAVY)])
        deadline = self.world.now + rng.choice([1.0, 7.0, 30.0, 1000.0])
        lanes = (rng.random() < 0.3, rng.random() < 0.3)
        needs = rng.choice([NO_NEEDS, NO_NEEDS, NO_NEEDS, *STYLES])
        count, has_inputs = rng.choice([1, 1, 1, 2, 3]), rng.random() < 0.3
        self.world.arrive(Wish(rng.choice("aab"), deadline, cascade, *lanes, needs, count, has_inputs))

    def _deliver(self) -> None:
        if self.world.replies:
            self.world.deliver(self._rng.choice([0, 0, self._rng.randrange(50)]))

    def _repeat(self) -> None:
        if self.world.said:
            self.world.repeat(self._rng.randrange(1000))

    def _end_attempt(self) -> None:
        busy = [worker for worker in self.world.workers.values() if worker.running]
        if busy:
            kind = self._rng.choice(list(FailureKind)) if self._rng.random() < 0.25 else None
            self.world.finish_attempt(self._rng.choice(busy), kind)

    def _begin(self) -> None:
        for worker in self.world.workers.values():
            for key in worker.running:
                self.world.replies.append(events.AttemptStarted(*key))

    def _yield_place(self) -> None:
        busy = [worker for worker in self.world.workers.values() if worker.running]
        if busy:
            self.world.yield_place(self._rng.choice(busy))

    def _report(self) -> None:
        worker = self._rng.choice(list(self.world.workers.values()))
        if not worker.alive:
            self.world.restart(worker)
            return
        worker.credit_count = max(self._rng.randrange(4), len(worker.running))
        self.world.report(worker)

    def _lose(self) -> None:
        worker = self._rng.choice([worker for worker in self.world.workers.values()])
        if worker.alive:
            self._rng.choice([self.world.kill, self.world.silence])(worker)

    def _pass_time(self) -> None:
        self.world.pass_time(self._rng.choice([0.2, 2.0, 11.0]))

    def _cancel(self) -> None:
        if self.world.wishes:
            self.world.send(events.CancelRequested(f"r{self._rng.randrange(len(self.world.wishes))}"))

    def _break(self) -> None:
        self.world.break_next = self._rng.choice(["before", "after"])

    def _start_frontdoor(self) -> None:
        if self._rng.random() < 0.3:
            self.world.start_frontdoor(standby=self._rng.random() < 0.5)


@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_random_walk_keeps_every_promise(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        rng = random.Random(seed)
        for _ in range(5):
            Walk(rng).run()
