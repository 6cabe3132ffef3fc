"""The controller's rounds under a clock of our own."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import PlanAcknowledgement, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.policies.allocation import hold_resident
from pentimento.settings import SettingsError, load_settings
from services.controller.controller import Controller, Pace
from services.controller.epoch import LeaderEpoch
from services.controller.plan_feed import PlanFeed
from services.controller.planner import Planner
from services.controller.registry import Registry
from services.controller.settings import ControllerSettings

NOW_MS = 1_800_000_000_000
PACE = Pace(lease_s=3.0, report_interval_s=1.0, plan_interval_s=1.0, settle_s=6.0)
WORKER = Replica("w1", ReplicaKind.UNET_WORKER, "unix:/w1", 1, resident_models=("heavy",))


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return NOW_MS / 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def controller(clock) -> Controller:
    epoch = LeaderEpoch(None, NOW_MS)
    planner = Planner(hold_resident, "resident", epoch.value)
    return Controller(Registry(3.0, 60.0, 10), planner, PlanFeed(4), epoch, PACE, clock)


def planned(controller: Controller) -> list[str]:
    return [assignment.worker_id for assignment in controller.fleet().plan.assignments]


def test_a_registration_is_answered_with_the_lease(controller):
    lease = controller.register(WORKER)

    assert (lease.lease_ms, lease.report_interval_ms, lease.leader_epoch) == (3000, 1000, NOW_MS)


def test_a_silent_worker_leaves_the_plan(controller, clock):
    controller.register(WORKER)
    controller.step(100.0)
    assert planned(controller) == ["w1"]

    clock.now_s = 103.0
    controller.step(103.0)

    assert planned(controller) == []
    assert [status.live for status in controller.fleet().replicas] == [False]


async def test_planning_ends_when_it_is_cancelled_in_the_moment_of_a_change(controller):
    planning = asyncio.create_task(controller.run())
    await asyncio.sleep(2 * PACE.min_plan_gap_s)  # the first round is over; it waits for a change

    controller.register(WORKER)
    await asyncio.sleep(0)  # the change has reached the wait, not yet the loop
    planning.cancel()
    ended, _ = await asyncio.wait({planning}, timeout=5)

    assert planning in ended


def test_a_refused_report_changes_nothing_and_is_counted(controller):
    controller.register(WORKER)
    controller.step(100.0)
    name, labels = "pentimento_controller_refused_reports_total", {"reason": "INVALID_FIELD"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0

    with pytest.raises(InvalidArgument, match="busy_share"):
        controller.report(ReplicaReport("w1", 1, busy_share=float("nan")))

    controller.step(101.0)
    assert planned(controller) == ["w1"]
    assert REGISTRY.get_sample_value(name, labels) == before + 1


async def test_the_epoch_rises_above_the_one_that_a_watcher_acts_on(controller):
    controller.register(WORKER)
    controller.step(100.0)

    watching = controller.watch(PlanVersion(NOW_MS + 50, 9))
    controller.step(107.0)

    assert (await anext(watching)).version == PlanVersion(NOW_MS + 51, 1)


def test_the_epoch_rises_above_the_one_that_a_report_acknowledges(controller):
    controller.register(WORKER)
    report = ReplicaReport("w1", 1, ("heavy",), plan=PlanAcknowledgement(PlanVersion(NOW_MS + 50, 1)))

    assert controller.report(report) == NOW_MS + 51


def test_an_epoch_that_no_leader_can_have_had_is_refused(controller):
    controller.register(WORKER)

    with pytest.raises(InvalidArgument, match="leader_epoch"):
        controller.report(ReplicaReport("w1", 1, plan=PlanAcknowledgement(PlanVersion(2**60, 1))))


def test_an_unknown_allocator_refuses_to_start(tmp_path: Path):
    with pytest.raises(SettingsError, match="--allocator must be one of resident"):
        load_settings(ControllerSettings, "controller", ["--allocator", "guess"], {})
