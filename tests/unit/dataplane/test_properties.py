"""Any order of events: no accepted request is lost, none is committed twice, each ends once, bounds are kept."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pentimento.dataplane import events
from pentimento.dataplane.events import FailureKind
from tests.unit.dataplane.world import World, WorldWorker

indexes = st.integers(0, 50)
names = st.sampled_from(["w1", "w2", "w3"])


class DataplaneInAnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(time_left=st.sampled_from([2.0, 20.0, 1000.0]))
    def arrive(self, time_left: float) -> None:
        self.world.arrive(self.world.now + time_left)

    @precondition(lambda self: self.world.replies)
    @rule(index=indexes)
    def deliver(self, index: int) -> None:
        self.world.deliver(index)

    @precondition(lambda self: self.world.replies)
    @rule()
    def deliver_all(self) -> None:
        while self.world.replies:
            self.world.deliver(0)

    @precondition(lambda self: self.world.said)
    @rule(index=indexes)
    def repeat(self, index: int) -> None:
        self.world.repeat(index)

    @rule(name=names, credit_count=st.integers(0, 3))
    def report(self, name: str, credit_count: int) -> None:
        worker = self.world.workers[name]
        if worker.alive:
            worker.credit_count = max(credit_count, len(worker.running))
            self.world.report(worker)

    @rule(name=names)
    def begin_attempt(self, name: str) -> None:
        worker = self._running(name)
        if worker is not None:
            self.world.replies.append(events.AttemptStarted(*next(iter(worker.running))))

    @rule(name=names, kind=st.sampled_from([None, None, None, *FailureKind]))
    def end_attempt(self, name: str, kind: FailureKind | None) -> None:
        worker = self._running(name)
        if worker is not None:
            self.world.finish_attempt(worker, kind)

    @rule(name=names)
    def kill(self, name: str) -> None:
        if self.world.workers[name].alive:
            self.world.kill(self.world.workers[name])

    @rule(name=names)
    def restart(self, name: str) -> None:
        if not self.world.workers[name].alive:
            self.world.restart(self.world.workers[name])

    @rule(name=names)
    def silence(self, name: str) -> None:
        if self.world.workers[name].alive:
            self.world.silence(self.world.workers[name])

    @rule(index=indexes)
    def cancel(self, index: int) -> None:
        if self.world.arrived:
            self.world.send(events.CancelRequested(f"r{index % len(self.world.arrived)}"))

    @rule(seconds=st.sampled_from([0.5, 4.0, 15.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.send(events.TimePassed())

    @rule()
    def restart_frontdoor(self) -> None:
        self.world.start_frontdoor()

    def teardown(self) -> None:
        self.world.settle()
        world = self.world
        for request_id, row in world.rows.items():
            assert len(row.ends) == 1, (request_id, row)
        for request_id, answers in world.answers.items():
            assert answers == world.rows[request_id].ends
        assert world.granted == world.settled_grants
        state = world.dataplane.state
        assert all(pool.waiting_count == pool.running_count == 0 for pool in state.pools.values())
        assert all(not worker.in_flight for worker in state.workers.values())
        assert not state.attempt_workers

    def _running(self, name: str) -> WorldWorker | None:
        worker = self.world.workers[name]
        return worker if worker.running else None


TestDataplaneInAnyOrder = DataplaneInAnyOrder.TestCase
TestDataplaneInAnyOrder.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
