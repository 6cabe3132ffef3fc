"""Pins of the cache's objects, on SQLite and on PostgreSQL."""

import struct

import pytest
from sqlalchemy import select

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import NotFound
from pentimento.domain.generation import CapturedEntries, CapturedLatent, ObjectReference
from pentimento.stores.ledger import cache_tables
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache_records import EntryCommit, GrantedKey, GrantRecord, ObjectPin
from pentimento.stores.objects.store import refer_to

VECTOR = struct.pack("<2f", 1.0, 0.0)
SHARED = "*shared*"
LATENT = refer_to("a/5", bytes(10))


def add(ledger: CacheLedger, pool: str = "t") -> str:
    """An entry of the tenant t with one latent."""
    ledger.reserve(GrantRecord("a", pool, "t", "scope", "r", 1, 1e12, (GrantedKey("a/5", 5),))).result()
    commit = EntryCommit(
        entry_id="entry",
        captured=CapturedEntries("a", (CapturedLatent(5, 0.5, LATENT, True),), None),
        tenant="t",
        pool=pool,
        scope_digest="scope",
        compatibility_keys={5: "key", None: "key"},
        request_id="r",
        fencing_token=1,
        text_vector=VECTOR,
        image_vector=None,
        ancestor_depth=0,
        created_at=1.0,
        step_count=50,
    )
    return ledger.commit(commit).result()


def evict(ledger: CacheLedger) -> None:
    ledger.doom(["entry"], grace_s=0).result()
    ledger.forget_entries(["entry"]).result()


def pin(ledger: CacheLedger, tenant: str = "t", until: float = 2000.0, request_id: str = "r1") -> None:
    ledger.pin(ObjectPin(tenant, request_id, LATENT, until), SHARED).result()


def delete_what_is_due(ledger: CacheLedger) -> list[str]:
    claimed = ledger.claim_deletion(ledger.deletable_keys(10)).result()
    ledger.forget_objects(claimed).result()
    return claimed


def test_a_pinned_object_stays_until_the_pin_ends(ledger: CacheLedger, clock: SetClock) -> None:
    add(ledger)
    pin(ledger)
    evict(ledger)

    assert ledger.live_entry("entry") is None and ledger.totals().size_bytes == 0
    assert delete_what_is_due(ledger) == []
    assert ledger.kept_by_pins() == ledger.kept_by_pins("a/5") == [LATENT]
    assert ledger.kept_by_pins("a/6") == []
    assert ledger.pinned_totals() == (1, LATENT.size_bytes)
    assert ledger.check_integrity() == []
    clock.wall_s = 2000.0
    assert ledger.pinned_totals() == (0, 0)
    assert ledger.kept_by_pins() == []
    assert delete_what_is_due(ledger) == ["a/5"]
    assert ledger.check_integrity() == []


def test_what_is_evicted_may_be_pinned_until_it_is_being_deleted(ledger: CacheLedger) -> None:
    add(ledger)
    evict(ledger)
    keys = ledger.deletable_keys(10)
    pin(ledger)
    assert ledger.claim_deletion(keys).result() == []
    assert ledger.unpin("t", "r1").result() == 1

    assert ledger.claim_deletion(keys).result() == ["a/5"]

    with pytest.raises(NotFound) as gone:
        pin(ledger)
    assert gone.value.reason == "ANCESTOR_GONE"
    # The process ended before it forgot the row: the next one claims it again.
    assert ledger.deletable_keys(10) == ["a/5"]
    assert delete_what_is_due(ledger) == ["a/5"]


def test_a_pin_that_has_ended_is_no_row_any_more_though_nothing_is_deleted(
    ledger: CacheLedger, clock: SetClock
) -> None:
    add(ledger)
    pin(ledger, until=1500.0, request_id="r1")
    pin(ledger, until=2500.0, request_id="r2")
    clock.wall_s = 1500.0

    ledger.expire_grants().result()

    with ledger._reading() as connection:
        assert connection.scalars(select(cache_tables.pins.c.request_id)).all() == ["r2"]


def test_each_request_holds_it_for_itself(ledger: CacheLedger, clock: SetClock) -> None:
    add(ledger)
    pin(ledger, until=1500.0, request_id="r1")
    pin(ledger, until=2500.0, request_id="r2")
    evict(ledger)
    clock.wall_s = 1600.0
    assert delete_what_is_due(ledger) == []

    ledger.unpin("t", "r2").result()

    assert delete_what_is_due(ledger) == ["a/5"]


def test_a_pin_ends_at_the_time_that_was_named_last(ledger: CacheLedger, clock: SetClock) -> None:
    add(ledger)
    pin(ledger, until=1500.0)
    pin(ledger, until=2500.0)
    evict(ledger)

    clock.wall_s = 1600.0
    assert delete_what_is_due(ledger) == []
    clock.wall_s = 2500.0
    assert delete_what_is_due(ledger) == ["a/5"]


def test_nobody_pins_what_is_anothers(ledger: CacheLedger) -> None:
    add(ledger)

    for wanted in (
        ObjectPin("other", "r1", LATENT, 2000.0),
        ObjectPin("t", "r1", ObjectReference("a/5", "sha256:other", 10), 2000.0),
        ObjectPin("t", "r1", ObjectReference("a/6", LATENT.digest, 10), 2000.0),
    ):
        with pytest.raises(NotFound) as gone:
            ledger.pin(wanted, SHARED).result()
        assert gone.value.reason == "ANCESTOR_GONE"
    pin(ledger)
    assert ledger.unpin("other", "r1").result() == 0
    evict(ledger)
    assert ledger.kept_by_pins() == [LATENT]


def test_what_is_shared_everybody_pins_and_holds_also_when_its_entry_is_gone(ledger: CacheLedger) -> None:
    add(ledger, pool=SHARED)
    pin(ledger, "other", until=1500.0)
    evict(ledger)

    pin(ledger, "other", until=2000.0)

    assert ledger.kept_by_pins() == [LATENT]
    with pytest.raises(NotFound):
        pin(ledger, "third")


def test_a_pin_of_what_is_lost_is_a_contradiction_until_it_is_dropped(ledger: CacheLedger) -> None:
    add(ledger)
    pin(ledger)
    evict(ledger)
    ledger.forget_objects(["a/5"]).result()
    assert ledger.check_integrity() == ["the pin of request r1 is on object a/5, which is not kept"]

    assert ledger.drop_pins("a/5").result() == 1

    assert ledger.check_integrity() == []


def test_pins_survive_a_restart(ledger_url: str, clock: SetClock) -> None:
    first = open_cache_ledger(ledger_url, clock)
    add(first)
    pin(first)
    evict(first)
    first.close()

    second = open_cache_ledger(ledger_url, clock)

    assert second.deletable_keys(10) == [] and second.kept_by_pins() == [LATENT]
    second.close()
