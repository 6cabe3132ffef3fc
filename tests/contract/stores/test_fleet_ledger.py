"""Test the controllers' shared ledger: the leader, the last plan and the registrations, on SQLite and PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.clock import LeaseState, epoch_at, latest_believable
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import RegisteredRow
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from services.controller.repository import ModelRepository
from tests.contract.stores.records import NOW_S, on_sqlite
from tests.unit.controller.registered import cascade, handover_profile, unstated, variant_of_its_own

ROW = RegisteredRow("model", "light", "sha256:1", '{"family": "sd"}')


@pytest.fixture
def ledger(ledger_url: str, dated_clock: SetClock) -> Iterator[FleetLedger]:
    opened = open_fleet_ledger(ledger_url, dated_clock)
    yield opened
    opened.close()


def test_claim_epoch_is_start_time_or_one_more(ledger: FleetLedger, dated_clock: SetClock) -> None:
    first = ledger.claim_epoch("a").result()
    dated_clock.wall_s -= 3600.0
    second = ledger.claim_epoch("b").result()

    assert (first, second) == (epoch_at(NOW_S), epoch_at(NOW_S) + 1)


@on_sqlite
def test_claim_epoch_gives_up_unbelievable_one(ledger: FleetLedger, dated_clock: SetClock) -> None:
    dated_clock.wall_s = NOW_S + 100 * 366 * 24 * 3600.0
    ledger.claim_epoch("a").result()
    dated_clock.wall_s = NOW_S

    assert ledger.claim_epoch("b").result() == epoch_at(NOW_S) <= latest_believable(NOW_S)


def test_beat_after_take_over_is_refused(ledger: FleetLedger) -> None:
    epoch = ledger.claim_epoch("a").result()
    assert ledger.beat(epoch).result()
    seen = ledger.lease().result()
    assert seen == LeaseState(epoch, 1)

    newer = ledger.take_over("b", seen).result()

    assert newer == epoch + 1
    assert not ledger.beat(epoch).result()
    assert ledger.beat(epoch + 1).result()


@on_sqlite
def test_take_over_from_beating_leader_is_refused(ledger: FleetLedger) -> None:
    epoch = ledger.claim_epoch("a").result()
    seen = ledger.lease().result()
    ledger.beat(epoch).result()

    assert ledger.take_over("b", seen).result() is None


def test_take_over_by_many_standbys_succeeds_once(ledger_url: str) -> None:
    ledgers = [open_fleet_ledger(ledger_url) for _ in range(4)]
    seen = ledgers[0].lease().result()
    with ThreadPoolExecutor(4) as threads:
        claimed = list(threads.map(lambda each: each.take_over("s", seen).result(), ledgers))
    for each in ledgers:
        each.close()

    assert sum(epoch is not None for epoch in claimed) == 1


def test_rise_of_leader_until_taken_over(ledger: FleetLedger) -> None:
    epoch = ledger.claim_epoch("a").result()
    assert ledger.rise(epoch, epoch + 10).result()
    assert ledger.rise(epoch, epoch + 10).result()  # called again

    ledger.claim_epoch("b").result()

    assert not ledger.rise(epoch + 10, epoch + 20).result()


def test_load_plan_at_next_start_returns_last(ledger: FleetLedger, ledger_url: str) -> None:
    epoch = ledger.claim_epoch("a").result()
    assert ledger.load_plan().result() is None
    assert [ledger.save_plan(PlanVersion(epoch, n), b"%d" % n).result() for n in (1, 2, 2)] == [True, True, True]

    other = open_fleet_ledger(ledger_url)
    loaded = other.load_plan().result()
    other.close()

    assert loaded == b"2"


def test_save_plan_older_replaces_none(ledger: FleetLedger) -> None:
    first = ledger.claim_epoch("a").result()
    ledger.save_plan(PlanVersion(first, 5), b"kept").result()
    assert not ledger.save_plan(PlanVersion(first, 4), b"older").result()

    newer = ledger.claim_epoch("b").result()

    assert not ledger.save_plan(PlanVersion(first, 6), b"fenced").result()
    assert ledger.load_plan().result() == b"kept"
    assert ledger.save_plan(PlanVersion(newer, 1), b"new").result()
    assert ledger.load_plan().result() == b"new"


def test_register_again_changes_nothing(ledger: FleetLedger) -> None:
    other = replace(ROW, kind="lora")
    assert [ledger.register(row).result() for row in (other, ROW, ROW)] == [True, True, True]

    assert ledger.registered().result() == [other, ROW]


def test_register_changed_row_needs_unregister(ledger: FleetLedger) -> None:
    ledger.register(ROW).result()
    changed = replace(ROW, document="{}")
    for other in (changed, replace(ROW, digest="sha256:2")):
        assert not ledger.register(other).result()
    assert ledger.registered().result() == [ROW]

    assert [ledger.unregister(ROW.kind, ROW.name).result() for _ in range(2)] == [True, False]

    assert ledger.register(changed).result()
    assert ledger.registered().result() == [changed]


def test_replace_changes_the_document_of_the_same_digest_only(ledger: FleetLedger) -> None:
    others = [replace(ROW, kind="lora"), replace(ROW, name="other")]
    for row in (ROW, *others):
        ledger.register(row).result()
    signed = replace(ROW, document='{"signature": 1}')

    found = [ledger.replace(row).result() for row in (signed, replace(signed, digest="x"), replace(signed, name="x"))]

    assert found == [True, False, False]
    assert sorted(ledger.registered().result(), key=str) == sorted([signed, *others], key=str)


@on_sqlite
def test_registered_text_is_unchanged(ledger: FleetLedger) -> None:
    row = RegisteredRow("model", "'; DROP TABLE fleet_registered; --", "", '{"a": "ü\\u0000\\n"}')
    ledger.register(row).result()

    assert ledger.registered().result() == [row]


@on_sqlite
async def test_repository_of_next_controller_knows_reuse_shares(ledger: FleetLedger) -> None:
    light, heavy = variant_of_its_own("light"), variant_of_its_own("heavy")
    two, stated = unstated(cascade("light", "heavy")), cascade("heavy", "light")
    first, second = ModelRepository(ledger), ModelRepository(ledger)
    for one in (light, heavy):
        await first.register_model(one)
    profiled = [await first.register_cascade(two, [handover_profile(light, heavy)]) for _ in range(2)]
    await first.register_cascade(stated)
    await second.load()

    assert second.registered.cascades == (stated, profiled[0]) and profiled[0] == profiled[1]
    assert (profiled[0].handovers[0].reuse_share, stated.handovers[0].reuse_profile) == (0.2, None)
    assert profiled[0].handovers[0].reuse_profile is not None


@on_sqlite
async def test_repository_keeps_cascade_without_profile(ledger: FleetLedger) -> None:
    handover = """{"discriminator": "a>b", "discriminator_digest": "sha256:1", "thresholds": [0.0], "shares": [1.0],
        "reuse_share": 0.25}"""
    ledger.register(
        RegisteredRow("cascade", "a>b", "", f'{{"models": ["a", "b"], "handovers": [{handover}]}}')
    ).result()
    repository = ModelRepository(ledger)
    await repository.load()

    (kept,) = repository.registered.cascades
    assert (kept.name, kept.handovers[0].reuse_share, kept.handovers[0].reuse_profile) == ("a>b", 0.25, None)
