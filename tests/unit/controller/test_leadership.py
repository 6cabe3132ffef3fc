"""Which plan a new leader goes on from: that of the leader before it, if one can have made it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.epochs import latest_believable
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.service.lease import LedgerLease
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from pentimento.wire.codec import to_bytes
from services.controller.leadership import Leadership

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


async def test_a_plan_that_is_not_understood_keeps_nobody_from_leading(ledger: FleetLedger) -> None:
    ledger.save_plan(PlanVersion(LATEST, 1), b"no plan").result()
    leadership = Leadership(ledger, LedgerLease(ledger, "one", 1.0), "one", CLOCK)

    _, left = await leadership.begin(standby=False)

    assert left is None
