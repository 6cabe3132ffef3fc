"""Which plan a new leader goes on from: that of the leader before it, if one can have made it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.fixtures.clocks import SetClock
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.epochs import latest_believable
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.service.lease import LedgerLease
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from pentimento.wire.codec import to_bytes
from services.controller.leadership import BELIEVABLE_LEAD_MS, FILE_NAME, LeaderEpoch, Leadership

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


NOW_MS = 1_800_000_000_000


def test_it_is_the_clocks_where_nothing_is_stored():
    assert LeaderEpoch(None, NOW_MS).value == NOW_MS


@given(st.lists(st.integers(NOW_MS - 10**9, NOW_MS + 10**9), min_size=2, max_size=6))
def test_it_grows_over_restarts_even_if_the_clock_jumps(tmp_path_factory, clock_ms):
    state_dir = tmp_path_factory.mktemp("state")

    epochs = [LeaderEpoch(state_dir, wall_ms).value for wall_ms in clock_ms]

    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("content", ["", "garbage", "-5", "9" * 40, "\xff"])
def test_a_file_that_makes_no_sense_leaves_it_to_the_clock(tmp_path, content):
    (tmp_path / FILE_NAME).write_text(content, encoding="utf-8")

    assert LeaderEpoch(tmp_path, NOW_MS).value == NOW_MS
    assert LeaderEpoch(tmp_path, NOW_MS).value == NOW_MS + 1


def test_it_is_on_the_disk_before_it_takes_the_older_ones_place(tmp_path, monkeypatch):
    LeaderEpoch(tmp_path, NOW_MS)
    seen = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append((tmp_path / FILE_NAME).read_text()))

    LeaderEpoch(tmp_path, NOW_MS + 5)

    assert seen == [str(NOW_MS), str(NOW_MS + 5)], "the new file, then its directory"
    assert (tmp_path / FILE_NAME).read_text() == str(NOW_MS + 5)


def test_a_directory_that_cannot_be_written_leaves_it_to_the_clock(tmp_path):
    (tmp_path / "file").write_text("")

    assert LeaderEpoch(tmp_path / "file" / "state", NOW_MS).value == NOW_MS


def test_a_clock_that_was_set_right_after_the_start_says_what_can_be_believed():
    """A machine without a clock of its own starts in 1970; its followers hold the plan of a leader before."""
    now_ms = [0]
    epoch = LeaderEpoch(None, 0, now_ms=lambda: now_ms[0])
    assert not epoch.overtake(NOW_MS - 5000)

    now_ms[0] = NOW_MS

    assert epoch.believable(NOW_MS - 5000) and epoch.overtake(NOW_MS - 5000)
    assert epoch.value == NOW_MS - 4999


def test_a_clock_that_was_set_back_after_the_start_takes_nothing_back():
    epoch = LeaderEpoch(None, NOW_MS, now_ms=lambda: 0)

    assert epoch.believable(epoch.value)


def test_it_rises_above_an_epoch_that_somebody_acts_on_and_remembers_it(tmp_path):
    epoch = LeaderEpoch(tmp_path, NOW_MS)

    assert epoch.overtake(NOW_MS + 500)

    assert epoch.value == NOW_MS + 501
    assert LeaderEpoch(tmp_path, NOW_MS).value == NOW_MS + 502


@pytest.mark.parametrize("seen", [0, NOW_MS - 1, NOW_MS, NOW_MS + BELIEVABLE_LEAD_MS + 1, 2**63])
def test_it_does_not_rise_for_older_epochs_nor_for_ones_no_leader_can_have_had(seen):
    epoch = LeaderEpoch(None, NOW_MS)

    assert not epoch.overtake(seen)
    assert epoch.value == NOW_MS
