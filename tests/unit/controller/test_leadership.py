"""A new leader continues from the previous leader's plan, unless that plan is impossible."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.clock import latest_believable
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.service.lease import LedgerLease
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from pentimento.wire.codec import to_bytes
from services.controller.leadership import BELIEVABLE_LEAD_MS, LeaderEpoch, Leadership

CLOCK = SetClock()
LATEST = latest_believable(CLOCK.wall())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[FleetLedger]:
    opened = open_fleet_ledger(f"sqlite:///{tmp_path / 'fleet.sqlite'}")
    yield opened
    opened.close()


@pytest.mark.parametrize("epoch, is_believed", [(LATEST, True), (LATEST + 1, False)])
async def test_a_plan_that_no_leader_can_have_made_is_ignored(
    ledger: FleetLedger, epoch: int, is_believed: bool
) -> None:
    plan = Plan(PlanVersion(epoch, 1))
    ledger.save_plan(plan.version, to_bytes(plan, controller_pb.Plan)).result()
    leadership = Leadership(ledger, LedgerLease(ledger, "one", 1.0), "one", CLOCK)

    _, left = await leadership.begin(standby=False)

    assert left == (plan if is_believed else None)


async def test_unreadable_plan_does_not_prevent_leading(ledger: FleetLedger) -> None:
    ledger.save_plan(PlanVersion(LATEST, 1), b"no plan").result()
    leadership = Leadership(ledger, LedgerLease(ledger, "one", 1.0), "one", CLOCK)

    _, left = await leadership.begin(standby=False)

    assert left is None


NOW_MS = 1_800_000_000_000


def test_epoch_is_the_clocks_time_at_the_start():
    assert LeaderEpoch(lambda: NOW_MS).value == NOW_MS


def test_clock_set_right_after_start_decides_believable_epochs():
    """A machine without a real-time clock starts in 1970; its followers hold the plan of an earlier leader."""
    now_ms = [0]
    epoch = LeaderEpoch(lambda: now_ms[0])
    assert not epoch.overtake(NOW_MS - 5000)

    now_ms[0] = NOW_MS

    assert epoch.believable(NOW_MS - 5000) and epoch.overtake(NOW_MS - 5000)
    assert epoch.value == NOW_MS - 4999


def test_a_clock_that_was_set_back_after_the_start_takes_nothing_back():
    now_ms = [NOW_MS, 0]
    epoch = LeaderEpoch(lambda: now_ms.pop(0))

    assert epoch.believable(epoch.value)


@pytest.mark.parametrize("seen", [0, NOW_MS - 1, NOW_MS, NOW_MS + BELIEVABLE_LEAD_MS + 1, 2**63])
def test_epoch_does_not_rise_for_older_or_impossible_ones(seen):
    epoch = LeaderEpoch(lambda: NOW_MS)

    assert not epoch.overtake(seen)
    assert epoch.value == NOW_MS
