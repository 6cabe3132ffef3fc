"""What controllers write into one ledger: who leads, the last plan, what was registered; SQLite and PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.epochs import LeaseState, epoch_at, latest_believable
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import RegisteredRow
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from services.controller.models.repository import ModelRepository
from tests.contract.stores.journal_records import NOW_S
from tests.unit.controller.registered import cascade, handover_profile, unstated, variant_of_its_own

ROW = RegisteredRow("model", "light", "sha256:1", '{"family": "sd"}')


@pytest.fixture
def ledger(ledger_url: str, dated_clock: SetClock) -> Iterator[FleetLedger]:
    opened = open_fleet_ledger(ledger_url, dated_clock)
    yield opened
    opened.close()


def test_epochs_are_start_times_and_grow_where_the_clock_does_not(ledger: FleetLedger, dated_clock: SetClock) -> None:
    first = ledger.claim_epoch("a").result()
    dated_clock.wall_s -= 3600.0
    second = ledger.claim_epoch("b").result()

    assert (first, second) == (epoch_at(NOW_S), epoch_at(NOW_S) + 1)


def test_an_epoch_that_no_follower_would_believe_is_given_up(ledger: FleetLedger, dated_clock: SetClock) -> None:
    dated_clock.wall_s = NOW_S + 100 * 366 * 24 * 3600.0
    ledger.claim_epoch("a").result()
    dated_clock.wall_s = NOW_S

    assert ledger.claim_epoch("b").result() == epoch_at(NOW_S) <= latest_believable(NOW_S)


def test_who_was_taken_over_from_is_told_at_its_next_beat(ledger: FleetLedger) -> None:
    epoch = ledger.claim_epoch("a").result()
    assert ledger.beat(epoch).result()
    seen = ledger.lease().result()
    assert seen == LeaseState(epoch, 1)

    newer = ledger.take_over("b", seen).result()

    assert newer == epoch + 1
    assert not ledger.beat(epoch).result()
    assert ledger.beat(epoch + 1).result()


def test_a_leader_that_has_beaten_meanwhile_is_not_taken_over_from(ledger: FleetLedger) -> None:
    epoch = ledger.claim_epoch("a").result()
    seen = ledger.lease().result()
    ledger.beat(epoch).result()

    assert ledger.take_over("b", seen).result() is None


def test_of_many_standbys_one_takes_over(ledger_url: str) -> None:
    ledgers = [open_fleet_ledger(ledger_url) for _ in range(4)]
    seen = ledgers[0].lease().result()
    with ThreadPoolExecutor(4) as threads:
        claimed = list(threads.map(lambda each: each.take_over("s", seen).result(), ledgers))
    for each in ledgers:
        each.close()

    assert sum(epoch is not None for epoch in claimed) == 1


def test_a_leader_may_rise_and_one_that_was_taken_over_from_may_not(ledger: FleetLedger) -> None:
    epoch = ledger.claim_epoch("a").result()
    assert ledger.rise(epoch, epoch + 10).result()
    assert ledger.rise(epoch, epoch + 10).result()  # called again

    ledger.claim_epoch("b").result()

    assert not ledger.rise(epoch + 10, epoch + 20).result()


def test_the_last_plan_is_there_for_the_next_start(ledger: FleetLedger, ledger_url: str) -> None:
    epoch = ledger.claim_epoch("a").result()
    assert ledger.load_plan().result() is None
    assert [ledger.save_plan(PlanVersion(epoch, n), b"%d" % n).result() for n in (1, 2, 2)] == [True, True, True]

    other = open_fleet_ledger(ledger_url)
    loaded = other.load_plan().result()
    other.close()

    assert loaded == b"2"


def test_an_older_plan_or_one_of_an_older_epoch_replaces_none(ledger: FleetLedger) -> None:
    first = ledger.claim_epoch("a").result()
    ledger.save_plan(PlanVersion(first, 5), b"kept").result()
    assert not ledger.save_plan(PlanVersion(first, 4), b"older").result()

    newer = ledger.claim_epoch("b").result()

    assert not ledger.save_plan(PlanVersion(first, 6), b"fenced").result()
    assert ledger.load_plan().result() == b"kept"
    assert ledger.save_plan(PlanVersion(newer, 1), b"new").result()
    assert ledger.load_plan().result() == b"new"


def test_what_is_registered_is_found_by_kind_and_name_and_may_be_said_again(ledger: FleetLedger) -> None:
    other = replace(ROW, kind="lora")
    assert [ledger.register(row).result() for row in (other, ROW, ROW)] == [True, True, True]

    assert ledger.registered().result() == [other, ROW]


@pytest.mark.parametrize("change", [{"digest": "sha256:2"}, {"document": "{}"}])
def test_a_name_means_one_thing_until_it_is_taken_away(ledger: FleetLedger, change: dict[str, str]) -> None:
    ledger.register(ROW).result()
    changed = replace(ROW, **change)
    assert not ledger.register(changed).result()
    assert ledger.registered().result() == [ROW]

    assert [ledger.unregister(ROW.kind, ROW.name).result() for _ in range(2)] == [True, False]

    assert ledger.register(changed).result()
    assert ledger.registered().result() == [changed]


def test_names_and_documents_come_back_as_they_were(ledger: FleetLedger) -> None:
    row = RegisteredRow("model", "'; DROP TABLE fleet_registered; --", "", '{"a": "ü\\u0000\\n"}')
    ledger.register(row).result()

    assert ledger.registered().result() == [row]


async def test_the_next_controller_knows_a_cascades_share_and_where_it_comes_from(ledger: FleetLedger) -> None:
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


async def test_cascades_that_were_registered_before_profiles_were_read_stay(ledger: FleetLedger) -> None:
    handover = """{"discriminator": "a>b", "discriminator_digest": "sha256:1", "thresholds": [0.0], "shares": [1.0],
        "reuse_share": 0.25}"""
    ledger.register(
        RegisteredRow("cascade", "a>b", "", f'{{"models": ["a", "b"], "handovers": [{handover}]}}')
    ).result()
    repository = ModelRepository(ledger)
    await repository.load()

    (kept,) = repository.registered.cascades
    assert (kept.name, kept.handovers[0].reuse_share, kept.handovers[0].reuse_profile) == ("a>b", 0.25, None)
