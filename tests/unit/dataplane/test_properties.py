"""Any order of events: no accepted request is lost, none is committed twice, each ends once, bounds are kept."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pentimento.dataplane import events
from pentimento.dataplane.events import FailureKind
from pentimento.policies.adapter_needs import NO_NEEDS, AdapterNeeds
from tests.unit.dataplane.breaking_world import BreakingWorld
from tests.unit.dataplane.world import HEAVY, LIGHT, STYLES, Wish, WorldWorker

indexes = st.integers(0, 50)
names = st.sampled_from(["w1", "w2", "w3", "w4"])
cascades = st.sampled_from([(), (LIGHT, HEAVY)])
# Pictures of no time at all and seconds a batch, so that some requests are predicted to be late.
PROFILES = events.ProfilesReceived((events.SpeedProfile(LIGHT, ((1, 3.0),)), events.SpeedProfile(HEAVY, ((1, 12.0),))))


class DataplaneInAnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = BreakingWorld()

    @rule(
        tenant=st.sampled_from(["a", "b"]),
        time_left=st.sampled_from([2.0, 20.0, 1000.0]),
        cascade=cascades,
        spare=st.booleans(),
        pair=st.booleans(),
        needs=st.sampled_from([NO_NEEDS, *STYLES]),
    )
    def arrive(
        self, tenant: str, time_left: float, cascade: tuple[str, ...], spare: bool, pair: bool, needs: AdapterNeeds
    ) -> None:
        self.world.arrive(Wish(tenant, self.world.now + time_left, cascade, spare, pair, needs))

    @rule()
    def learn_speeds(self) -> None:
        self.world.send(PROFILES)

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

    @rule(name=names)
    def yield_place(self, name: str) -> None:
        worker = self._running(name)
        if worker is not None:
            self.world.yield_place(worker)

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
        if self.world.wishes:
            self.world.send(events.CancelRequested(f"r{index % len(self.world.wishes)}"))

    @rule(seconds=st.sampled_from([0.5, 4.0, 15.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(when=st.sampled_from(["before", "after"]))
    def break_next(self, when: str) -> None:
        self.world.break_next = when

    @rule(standby=st.booleans())
    def restart_frontdoor(self, standby: bool) -> None:
        self.world.start_frontdoor(standby=standby)

    def teardown(self) -> None:
        self.world.settle()
        self.world.check_at_rest()

    def _running(self, name: str) -> WorldWorker | None:
        worker = self.world.workers[name]
        return worker if worker.running else None


TestDataplaneInAnyOrder = DataplaneInAnyOrder.TestCase
TestDataplaneInAnyOrder.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
