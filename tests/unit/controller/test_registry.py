"""Leases, generations and drains: which replicas may be planned with."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pentimento.domain.components import HeldComponent, Tier
from pentimento.domain.errors import FailedPrecondition, NotFound, ResourceExhausted
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from services.controller.registry import RETENTION_S, WORKED_S, Registry
from tests.support.values import a_worker

LEASE_S = 3.0


def replica(name: str = "w1", generation: int = 1, **parts: object) -> Replica:
    return a_worker(name, generation=generation, **parts)


@pytest.fixture
def registry() -> Registry:
    return Registry(LEASE_S, capacity=3)


def live(registry: Registry, now_s: float) -> list[tuple[str, int]]:
    return [(view.replica.instance_id, view.replica.generation) for view in registry.live(now_s)]


def test_report_after_silence_changes_the_plan(registry: Registry) -> None:
    registry.register(replica(), 0.0)

    received = registry.report(ReplicaReport("w1", 1), 5.0)

    assert (received.changed, received.covered_s) == (True, 5.0)


def test_replica_works_for_a_time_after_its_last_finished_request(registry: Registry) -> None:
    def works(now_s: float, completed_count: int) -> bool:
        registry.report(ReplicaReport("w1", 1, completed_count=completed_count), now_s)
        (view,) = registry.live(now_s)
        return view.works

    registry.register(replica(), 0.0)

    assert [works(1.0, 0), works(2.0, 1), works(2.0 + WORKED_S - 0.5, 1)] == [False, True, True]
    registry.register(replica(), 2.0 + WORKED_S - 0.4)
    assert [works(2.0 + WORKED_S - 0.3, 1), works(2.0 + WORKED_S, 1), works(70.0, 2)] == [True, False, True]


@pytest.mark.parametrize(
    ("first", "second", "at_s", "left"),
    [
        pytest.param(replica(), replica(generation=2), 1.0, ("w1", 2), id="later-start"),
        pytest.param(replica(generation=2), replica(), 4.0, ("w1", 1), id="earlier-start-after-silence"),
        pytest.param(replica(), replica("w2", 2, address="unix:/w1"), 1.0, ("w2", 2), id="address-of-earlier-start"),
        pytest.param(replica(generation=2), replica("w2", address="unix:/w1"), 4.0, ("w2", 1), id="silent-address"),
    ],
)
def test_registration_takes_the_place_of_another(
    registry: Registry, first: Replica, second: Replica, at_s: float, left: tuple[str, int]
) -> None:
    registry.register(first, 0.0)

    registry.register(second, at_s)

    assert live(registry, at_s) == [left]


@pytest.mark.parametrize(
    ("first", "second", "reason", "kept"),
    [
        (replica(generation=2), replica(generation=1), "REPLICA_SUPERSEDED", "w1"),
        (replica(), replica(address="other:1"), "REPLICA_SUPERSEDED", "w1"),
        (replica(generation=2), replica("w2", address="unix:/w1"), "REPLICA_ADDRESS_TAKEN", "w1"),
        (replica(), replica("w2", address="unix:/w1"), "REPLICA_ADDRESS_TAKEN", "w1"),
    ],
    ids=["earlier start", "two of one moment", "address of a later start", "address, two of one moment"],
)
def test_register_identity_of_live_replica_is_rejected(
    registry: Registry, first: Replica, second: Replica, reason: str, kept: str
) -> None:
    registry.register(first, 0.0)

    with pytest.raises(FailedPrecondition, match="of its own") as rejected:
        registry.register(second, 1.0)

    assert rejected.value.reason == reason
    assert [name for name, _ in live(registry, 1.0)] == [kept]


def test_replica_that_lost_its_address_is_rejected(registry: Registry) -> None:
    registry.register(replica(), 0.0)
    registry.register(replica("w2", generation=2, address="unix:/w1"), 1.0)

    with pytest.raises(NotFound):
        registry.report(ReplicaReport("w1", 1), 1.5)
    with pytest.raises(FailedPrecondition, match="w1 is rejected: w2, which started later, advertises unix:/w1"):
        registry.register(replica(), 1.5)


def test_a_draining_replica_is_shown_but_not_planned_with(registry):
    registry.register(replica(), 0.0)

    received = registry.report(ReplicaReport("w1", 1, draining=True), 1.0)

    assert received.changed
    assert live(registry, 1.0) == []
    assert registry.statuses(1.0)[0].draining


def test_a_replica_that_says_more_of_itself_is_as_it_reported(registry: Registry) -> None:
    registry.register(replica(), 0.0)
    registry.report(ReplicaReport("w1", 1, draining=True, queue_length=3), 1.0)

    registry.register(replica(available_models=("other",)), 1.5)
    (status,) = registry.statuses(1.5)
    registry.register(replica(generation=2), 2.0)
    (later,) = registry.statuses(2.0)

    assert (status.draining, status.queue_length, status.replica.available_models) == (True, 3, ("other",))
    assert (later.draining, later.queue_length) == (False, 0)


WORKER, NET = ReplicaKind.UNET_WORKER, ReplicaKind.CONTROLNET


@pytest.mark.parametrize(
    ("kind", "before", "reported", "changed"),
    [
        pytest.param(WORKER, ("heavy",), ("heavy",), False, id="same-model"),
        pytest.param(WORKER, ("heavy",), ("light",), True, id="another-model"),
        pytest.param(WORKER, ("heavy",), ("heavy", "neon"), False, id="lora-of-a-worker"),
        pytest.param(WORKER, ("heavy", "neon"), ("light", "neon"), True, id="another-model-beneath-a-lora"),
        pytest.param(NET, ("edges",), ("edges", "depth"), True, id="controlnet"),
    ],
)
def test_report_says_whether_the_plan_depends_on_it(
    registry: Registry, kind: ReplicaKind, before: tuple[str, ...], reported: tuple[str, ...], changed: bool
) -> None:
    registry.register(replica(kind=kind, resident_models=before), 0.0)

    received = registry.report(ReplicaReport("w1", 1, reported, busy_share=0.5), 1.0)

    assert received.changed == changed
    assert registry.live(1.0)[0].replica.resident_models == reported


def changes(*held: tuple[str, Tier], all_components: bool = False, name: str = "w1") -> ReplicaReport:
    components = tuple(HeldComponent(digest, tier, 10) for digest, tier in held)
    return ReplicaReport(name, 1, component_changes=components, all_components=all_components)


def test_holders_have_a_draining_replica_only_where_no_other_holds_the_component(registry: Registry) -> None:
    for name, digests in (("w1", "ab"), ("w2", "a")):
        registry.register(replica(name), 0.0)
        held = changes(*((digest, Tier.DISK) for digest in digests), all_components=True, name=name)
        registry.report(replace(held, draining=name == "w1"), 0.0)

    (staying,) = (view.replica.address for view in registry.live(0.0))
    assert registry.holders("a", 0.0, "new") == [staying]
    assert registry.holders("b", 0.0, "new") == [replica("w1").address]
    assert registry.holders("b", 0.0, "w1") == []


def test_holders_follow_the_reported_changes(registry: Registry) -> None:
    for name in ("w1", "w2"):
        registry.register(replica(name), 0.0)
        registry.report(changes(("a", Tier.DISK), ("b", Tier.HOST), all_components=True, name=name), 0.0)
    addresses = [view.replica.address for view in registry.live(0.0)]
    assert registry.holders("a", 0.0, "new") == addresses
    assert registry.holders("a", 0.0, "w1") == addresses[1:]

    registry.report(changes(("a", Tier.STORE)), 1.0)
    assert registry.holders("a", 1.0, "new") == addresses[1:]
    registry.register(replica("w1"), 1.0)
    assert registry.holders("b", 1.0, "new") == addresses, "the same start registers again"
    registry.report(changes(("c", Tier.DISK), all_components=True), 1.0)
    assert registry.holders("b", 1.0, "new") == addresses[1:]
    registry.register(replica("w1", generation=2), 1.0)
    assert registry.holders("c", 1.0, "new") == []

    assert registry.holders("b", 3.0, "new") == [], "silent"


def test_the_silent_are_shown_until_the_retention_is_over(registry):
    registry.register(replica(), 0.0)

    registry.forget_silent(60.0)
    shown = registry.statuses(60.0)
    registry.forget_silent(60.1)

    assert [(status.live, status.last_report_age_ms) for status in shown] == [(False, 60_000)]
    assert registry.statuses(60.1) == ()


def test_a_full_fleet_refuses_another_live_replica(registry):
    for number in range(3):
        registry.register(replica(f"w{number}"), 0.0)

    with pytest.raises(ResourceExhausted) as refusal:
        registry.register(replica("w3"), 1.0)

    assert refusal.value.retry_after_ms == 3000


def test_a_full_fleet_forgets_a_silent_replica_for_a_new_one(registry):
    for number in range(3):
        registry.register(replica(f"w{number}"), float(number))

    registry.register(replica("w3"), 3.5)

    assert [status.replica.instance_id for status in registry.statuses(3.5)] == ["w1", "w2", "w3"]


def test_a_pause_of_the_controller_is_not_the_replicas_silence(registry):
    registry.register(replica("w1"), 0.0)
    registry.register(replica("w2"), 59.9)

    registry.forgive(58.0, 60.0)

    assert live(registry, 60.0) == [("w1", 1), ("w2", 1)]
    assert live(registry, 61.5) == [("w2", 1)]
    assert live(registry, 60.0 + LEASE_S) == []
    assert registry.statuses(60.0)[1].last_report_age_ms == 0


def test_the_next_expiry_is_that_of_the_replica_silent_longest(registry):
    assert registry.next_expiry_s(0.0) is None
    registry.register(replica("w1"), 1.0)
    registry.register(replica("w2"), 2.0)

    assert registry.next_expiry_s(2.0) == 4.0
    assert registry.next_expiry_s(4.5) == 5.0


class FleetMachine(RuleBasedStateMachine):
    """Any order of registrations, reports, departures and silence, against the rules written plainly."""

    names = st.sampled_from(["a", "b"])
    generations = st.integers(1, 3)

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(LEASE_S, capacity=8)
        self.now_s = 0.0
        self.received: dict[str, tuple[int, float]] = {}

    @rule(name=names, generation=generations)
    def register(self, name, generation):
        known, received_s = self.received.get(name, (0, -100.0))
        refused = known > generation and self.now_s - received_s < LEASE_S
        try:
            self.registry.register(replica(name, generation), self.now_s)
        except FailedPrecondition:
            assert refused
        else:
            assert not refused
            self.received[name] = (generation, self.now_s)

    @rule(name=names, generation=generations)
    def report(self, name, generation):
        known = self.received.get(name, (0, 0.0))[0]
        try:
            self.registry.report(ReplicaReport(name, generation), self.now_s)
        except (NotFound, FailedPrecondition):
            assert known != generation
        else:
            assert known == generation
            self.received[name] = (generation, self.now_s)

    @rule(name=names, generation=generations)
    def deregister(self, name, generation):
        known = self.received.get(name, (0, 0.0))[0]
        try:
            self.registry.deregister(name, generation)
        except (NotFound, FailedPrecondition):
            assert known != generation
        else:
            assert self.received.pop(name)[0] == generation

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.0, 60.0]))
    def wait(self, seconds):
        self.now_s += seconds
        self.registry.forget_silent(self.now_s)
        self.received = {name: one for name, one in self.received.items() if self.now_s - one[1] <= RETENTION_S}

    @invariant()
    def live_replicas_reported_within_lease(self):
        expected = [(name, one[0]) for name, one in sorted(self.received.items()) if self.now_s - one[1] < LEASE_S]
        assert live(self.registry, self.now_s) == expected


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
