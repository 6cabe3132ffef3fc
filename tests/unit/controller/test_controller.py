"""The controller's rounds under a clock of our own."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from lab.fixtures.clocks import SetClock
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import HeldComponent, Tier
from pentimento.domain.demand import AdapterDemand, PoolDemand
from pentimento.domain.errors import InvalidArgument, NotFound, Unavailable
from pentimento.domain.fleet import ModelCost, Plan, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.generation import ObjectReference, PlanVersion
from pentimento.policies.plan.inputs import AllocationProfile, Decision, PlanInput, hold_resident
from pentimento.policies.plan.registry import SERVING_POLICIES, ServingPolicy
from pentimento.settings import load_settings
from services.controller.checks import MAX_REQUESTS
from services.controller.controller import MIN_PLAN_GAP_S, Controller
from services.controller.leadership import LeaderEpoch
from services.controller.planner import Planner
from services.controller.registry import Registry
from services.controller.settings import ControllerSettings
from tests.support.values import a_worker

NOW_MS = 1_800_000_000_000
WORKER = a_worker("w1", "heavy")
DOOR = Replica("f1", ReplicaKind.FRONTDOOR, "unix:/f1", 1)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(wall_s=NOW_MS / 1000, monotonic_s=100.0)


@pytest.fixture
def asked() -> list[PlanInput]:
    """Record the policy's inputs."""
    return []


@pytest.fixture
def controller(clock, asked) -> Controller:
    def noting(context: PlanInput) -> Decision:
        asked.append(context)
        return hold_resident(context)

    epoch = LeaderEpoch(lambda: NOW_MS)
    planner = Planner(ServingPolicy("noting", noting), epoch.value, allocator_limit_s=60.0)
    return Controller(Registry(3.0), planner, epoch, 5.0, clock)


async def step_at(controller: Controller, clock: SetClock, now_s: float) -> None:
    clock.monotonic_s = now_s
    await controller.step(now_s)


def planned(controller: Controller) -> list[str]:
    return [assignment.worker_id for assignment in controller.fleet().plan.assignments]


def test_registration_is_answered_with_the_lease(controller):
    lease = controller.register(WORKER)

    assert (lease.lease_ms, lease.report_interval_ms, lease.leader_epoch) == (3000, 1000, NOW_MS)


def keep_alive(controller: Controller, *arrived_count: int) -> None:
    """Report from the worker, and these arrivals from the frontdoor."""
    controller.report(ReplicaReport("w1", 1, ("heavy",)))
    for count in arrived_count:
        controller.report(ReplicaReport("f1", 1, demand=(PoolDemand("heavy", count),)))


async def test_policy_begins_once_no_replica_joins_for_a_while(controller, clock, asked):
    controller.register(WORKER)
    for now_s in (102.0, 104.0):
        clock.monotonic_s = now_s
        keep_alive(controller)
    controller.register(DOOR)  # at 104: the fleet is calm from 107 on, later than it is settled
    await step_at(controller, clock, 106.0)
    assert asked == []

    keep_alive(controller)
    await step_at(controller, clock, 107.0)

    assert len(asked) == 1


async def test_policy_begins_despite_repeated_joins(controller, clock, asked):
    """One that dies as soon as it has registered, and is started again every two seconds."""
    controller.register(WORKER)
    for now_s in range(102, 166, 2):
        clock.monotonic_s = float(now_s)
        keep_alive(controller)
        controller.register(replace(DOOR, generation=now_s))
        await step_at(controller, clock, float(now_s))

    assert asked and asked[0].now_s == 160.0


async def test_policy_that_follows_queues_looks_after_every_second_report(controller, clock, asked):
    policy = controller._planner._policy
    controller._planner.follow(replace(policy, follows_queues=True))
    for replica in (WORKER, DOOR):
        controller.register(replica)
    for now_s in (102.0, 104.0, 106.0):
        clock.monotonic_s = now_s
        keep_alive(controller, 1)
    for now_s in (106.0, 107.0, 108.0, 109.0):
        await step_at(controller, clock, now_s)
        keep_alive(controller, 1)

    # The rounds at 107 and 109 decide by the demand before them.
    assert [context.now_s for context in asked] == [106.0, 106.0, 108.0, 108.0]


async def test_policy_runs_each_period_and_on_fleet_changes(controller, clock, asked):
    for replica in (WORKER, DOOR):
        controller.register(replica)
    for now_s, arrived_count in ((102.0, 1), (104.0, 3), (106.0, 2)):
        clock.monotonic_s = now_s
        keep_alive(controller, arrived_count)
    await step_at(controller, clock, 106.0)
    clock.monotonic_s = 108.0
    keep_alive(controller, 8)
    controller.register(replace(WORKER, instance_id="w2", address="unix:/w2"))
    await step_at(controller, clock, 108.0)
    clock.monotonic_s = 110.0
    keep_alive(controller, 4)
    await step_at(controller, clock, 111.0)

    first, again, second = asked
    assert [context.demand[0].arrivals_per_s for context in asked] == [1.0, 1.0, 3.0]
    assert (again.now_s, again.last, len(again.workers())) == (first.now_s, first.last, 2)
    assert (second.now_s, len(second.last.plan.assignments)) == (111.0, 2)


async def test_policy_plans_with_reported_costs(controller, clock, asked):
    costs = (ModelCost("heavy", ((1, 1.0), (2, 1.5)), 7, 3.0),)
    controller.register(replace(WORKER, device="gpu", costs=costs))
    clock.monotonic_s = 105.0
    keep_alive(controller)

    await step_at(controller, clock, 106.0)

    profiles = (AllocationProfile("heavy", "gpu", 1, 1.0, 7, 3.0), AllocationProfile("heavy", "gpu", 2, 1.5, 7, 3.0))
    assert asked[0].profiles == profiles


async def test_silent_worker_leaves_the_plan(controller, clock):
    controller.register(WORKER)
    await controller.step(100.0)
    assert planned(controller) == ["w1"]

    clock.monotonic_s = 103.0
    await controller.step(103.0)

    assert planned(controller) == []
    assert [status.live for status in controller.fleet().replicas] == [False]


async def test_planning_ends_when_it_is_cancelled_in_the_moment_of_a_change(controller):
    planning = asyncio.create_task(controller.run())
    await asyncio.sleep(2 * MIN_PLAN_GAP_S)  # the first round is over; it waits for a change

    controller.register(WORKER)
    await asyncio.sleep(0)  # the change has reached the wait, not yet the loop
    planning.cancel()
    ended, _ = await asyncio.wait({planning}, timeout=120)

    assert planning in ended


async def test_refused_report_changes_nothing_and_is_counted(controller):
    controller.register(WORKER)
    await controller.step(100.0)
    name, labels = "pentimento_controller_refused_reports_total", {"reason": "INVALID_FIELD"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0

    with pytest.raises(InvalidArgument, match="busy_share"):
        controller.report(ReplicaReport("w1", 1, busy_share=float("nan")))

    await controller.step(101.0)
    assert planned(controller) == ["w1"]
    assert REGISTRY.get_sample_value(name, labels) == before + 1


def test_unregistered_replica_must_register_before_its_report_is_checked(controller: Controller) -> None:
    """A frontdoor that counted demand without a controller may exceed a report's limit. Its registration resets the
    count."""
    report = ReplicaReport("f1", 1, demand=(PoolDemand("heavy", arrived_count=MAX_REQUESTS + 1),))

    with pytest.raises(NotFound) as unknown:
        controller.report(report)
    controller.register(DOOR)
    with pytest.raises(InvalidArgument):
        controller.report(report)

    assert unknown.value.reason == "REPLICA_NOT_REGISTERED"


async def test_epoch_rises_above_the_watchers_epoch(controller):
    controller.register(WORKER)
    await controller.step(100.0)

    watching = controller.watch(PlanVersion(NOW_MS + 50, 9))
    await controller.step(107.0)

    assert (await anext(watching)).version == PlanVersion(NOW_MS + 51, 1)


def a_lora(name: str) -> Adapter:
    digest = f"sha256:{name[-1] * 64}"
    return Adapter(name, AdapterKind.LORA, digest, "sd", object=ObjectReference(f"adapters/{name}", digest, 10))


async def test_components_are_found_with_the_replicas_that_hold_them(controller: Controller, clock: SetClock) -> None:
    one, two = a_lora("lora-1"), a_lora("lora-2")
    names = [f"w{number}" for number in range(6)]
    for name in names:
        controller.register(a_worker(name, "heavy"))
        held = (HeldComponent(one.digest, Tier.DISK, 10),)
        controller.report(ReplicaReport(name, 1, ("heavy",), component_changes=held))

    (found,) = controller.find_components("w0", (one.digest, two.digest), "")

    assert (found.digest, found.object) == (one.digest, None)
    assert len(set(found.addresses)) == 4
    assert set(found.addresses) <= {a_worker(name).address for name in names[1:]}
    for digests, field in ((("sha256:x",), r"digests\[0\]"), ((one.digest,) * 257, "digests: must be at most 256")):
        with pytest.raises(InvalidArgument, match=field):
            controller.find_components("w0", digests, "")


async def test_most_used_loras_are_found_with_their_place_in_the_object_store(
    controller: Controller, clock: SetClock
) -> None:
    rare, popular, gone = (a_lora(f"lora-{number}") for number in range(3))
    controller.name_uploaded((rare, popular))
    controller.register(WORKER)
    controller.register(DOOR)
    controller.report(
        ReplicaReport("w1", 1, ("heavy",), component_changes=(HeldComponent(rare.digest, Tier.DISK, 10),))
    )
    uses = {rare.name: 1, popular.name: 5, gone.name: 9}
    adapters = tuple(AdapterDemand(AdapterKind.LORA, name, count) for name, count in uses.items())
    for now_s in (102.0, 104.0, 106.0):
        clock.monotonic_s = now_s
        keep_alive(controller)
        controller.report(ReplicaReport("f1", 1, demand=(PoolDemand("heavy", 15, adapters=adapters),)))
    await step_at(controller, clock, 106.0)

    found = controller.find_components("new", (), "heavy")

    assert [(one.digest, one.object) for one in found] == [
        (popular.digest, popular.object),
        (rare.digest, rare.object),
    ]
    assert found[1].addresses == (WORKER.address,)
    assert controller.find_components("new", (), "light") == []


def test_epoch_rises_above_the_acknowledged_epoch(controller):
    controller.register(WORKER)
    report = ReplicaReport("w1", 1, ("heavy",), plan_version=PlanVersion(NOW_MS + 50, 1))

    assert controller.report(report) == NOW_MS + 51


def test_impossible_epoch_is_refused(controller):
    controller.register(WORKER)

    with pytest.raises(InvalidArgument, match="leader_epoch"):
        controller.report(ReplicaReport("w1", 1, plan_version=PlanVersion(2**60, 1)))


@pytest.mark.parametrize("name", sorted(SERVING_POLICIES))
def test_every_policy_can_be_named(name: str):
    flags = ["--heavy", "h", "--light", "l", "--slo-s", "5"]

    policy = load_settings(ControllerSettings, "controller", ["--allocator", name, *flags], {}).policy()

    assert policy.name == name


async def test_standby_controller_refuses_every_call(clock):
    kept: list[Plan] = []
    epoch = LeaderEpoch(lambda: NOW_MS)
    planner = Planner(ServingPolicy("resident", hold_resident), epoch.value)
    standby = Controller(Registry(3.0), planner, epoch, 5.0, clock, leads=False, keep=kept.append)
    calls = (
        lambda: standby.register(WORKER),
        lambda: standby.report(ReplicaReport("w1", 1)),
        lambda: standby.deregister("w1", 1),
        lambda: standby.watch(None),
        standby.fleet,
    )
    for call in calls:
        with pytest.raises(Unavailable) as refused:
            call()
        assert (refused.value.reason, refused.value.retry_after_ms) == ("STANDBY", 500)

    left = Plan(PlanVersion(NOW_MS, 7))
    standby.lead(NOW_MS + 5, left)
    standby.register(WORKER)
    await standby.step(101.0)

    assert standby.fleet().plan == left
    assert [plan.version for plan in kept] == [PlanVersion(NOW_MS + 5, 1)]
    clock.monotonic_s = 106.0
    await standby.step(106.0)
    assert standby.fleet().plan == kept[-1]


def test_raised_epoch_is_written_to_the_ledger():
    risen: list[tuple[int, int]] = []
    epoch = LeaderEpoch(lambda: NOW_MS, lambda old, new: risen.append((old, new)))

    assert epoch.overtake(NOW_MS + 50)

    assert (risen, epoch.value) == ([(NOW_MS, NOW_MS + 51)], NOW_MS + 51)
