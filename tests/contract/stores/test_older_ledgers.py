"""Ledgers with the rows of every earlier version, opened by this build, on SQLite and on PostgreSQL."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import MetaData, insert

from lab.fixtures.clocks import SetClock
from pentimento.domain.cache import CacheHolding
from pentimento.domain.generation import ObjectReference, SpecInput
from pentimento.domain.jobs import WebhookDelivery, WebhookState
from pentimento.domain.requests import RequestState
from pentimento.domain.tenants import Tenant, TenantQuota
from pentimento.stores.ledger import cache_tables, journal_tables, open_journal, tenant_tables
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import Migration, migrate
from pentimento.stores.ledger.records import AcceptKind, PicturePin
from tests.contract.stores.cache_records import VECTOR, reference
from tests.contract.stores.records import NOW_S
from tests.support.journals import a_result
from tests.support.values import an_attempt

# As the code of every version wrote them; of each the columns that its version had.
_REQUEST = {
    "tenant": "tenant",
    "body": b"\x00body",
    "body_hash": "hash",
    "accepted_at": NOW_S,
    "deadline_at": NOW_S + 60,
    "frontdoor_id": "frontdoor-1",
    "frontdoor_epoch": 1,
    "newest_epoch": 1,
    "attempt_count": 1,
    "error_reason": "",
    "error_message": "",
    "cascade_stage": 1,
    "body_format": 1,
    "detached": 1,
}
_OPEN = {"request_id": "open", "idempotency_key": "k1", "state": "running", "route": b"\x00route", "newest_token": 5}
_DONE = {
    "request_id": "done",
    "idempotency_key": "k2",
    "state": "completed",
    "newest_token": 6,
    "image_key": "results/a",
    "image_digest": "sha256:a",
    "image_size_bytes": 3,
    "image_format": "png",
    "width_px": 64,
    "height_px": 48,
    "provenance": b"\x00provenance",
    "finished_at": 105.0,
}
_ATTEMPT = {"attempt_number": 1, "frontdoor_id": "frontdoor-1", "frontdoor_epoch": 1, "worker_id": "w"}
_INPUT = ObjectReference("inputs/a", "sha256:b", 7)
JOURNAL: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "journal_requests": [_REQUEST | _OPEN, _REQUEST | _DONE],
    "journal_attempts": [
        _ATTEMPT | {"request_id": "open", "fencing_token": 5, "started_at": NOW_S, "cascade_stage": 1},
        _ATTEMPT | {"request_id": "done", "fencing_token": 6, "started_at": NOW_S, "cascade_stage": 1},
    ],
    "journal_plan": [{"singleton": 1, "plan": b"\x00plan"}],
    "journal_spool": [
        {"key": "results/w", "tenant": "tenant", "digest": "sha256:w", "size_bytes": 2, "data": b"\x00w"}
    ],
    "journal_pins": [{"request_id": "done", "tenant": "tenant", "expires_at": NOW_S + 9, "size_bytes": 5000}],
    "journal_pinned_inputs": [
        {"request_id": "done", "place": "init_image", "key": "inputs/a", "digest": "sha256:b", "size_bytes": 7}
    ],
    "journal_webhooks": [
        {"request_id": "open", "url": "https://a", "state": "pending", "try_count": 2, "next_at": 0.0, "error": "e"}
    ],
}
_HELD = {"grant_id": "gone", "entry_id": "entry", "compatibility_key": "key", "tenant": "tenant"}
_RECORD = {"saved_steps": 5.0, "added_tick": 1, "used_tick": 1, "use_count": 1, "faded_uses": 1.0, "rank_score": 1.0}
_KEPT, _PINNED = reference("cache/a/5"), reference("cache/a/10")
CACHE: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "cache_state": [
        {"singleton": 1, "cache_id": "id", "encoder_digest": "e", "dimension_count": 2, "sequence": 3, "entry_count": 1}
        | {"object_count": 1, "size_bytes": 10, "tick": 4, "eviction_rule": "fifo"}
    ],
    "cache_grants": [
        {"grant_id": "open", "pool": "pool", "tenant": "tenant", "scope_digest": "scope", "request_id": "r2"}
        | {"fencing_token": 7, "expires_at": 2 * NOW_S}
    ],
    "cache_entries": [
        {"entry_id": "entry", "pool": "pool", "tenant": "tenant", "created_at": 1.0, "sequence": 3, "ancestor_depth": 2}
        | {"text_vector": VECTOR, "object_count": 1, "size_bytes": 10, "indexed": 1, "rank_score": 1.0, "rank_tie": 3}
        | {"request_id": "r1"}
    ],
    "cache_objects": [
        _HELD | _RECORD | {"key": _KEPT.key, "resume_step": 5, "sigma": 0.5, "digest": _KEPT.digest, "size_bytes": 10},
        _HELD | {"key": _PINNED.key, "resume_step": 10, "sigma": 0.2, "digest": _PINNED.digest, "size_bytes": 10}
        | _RECORD | {"entry_id": None, "delete_after": 5.0},
    ],
    "cache_pins": [{"tenant": "tenant", "request_id": "r3", "key": _PINNED.key, "expires_at": 2 * NOW_S}],
    "cache_tenant_limits": [{"tenant": "tenant", "size_bytes": 77}],
}  # fmt: skip


@pytest.mark.parametrize("version", range(1, len(journal_tables.MIGRATIONS)))
def test_open_journal_of_any_version_serves_its_rows(ledger_url: str, version: int) -> None:
    write(ledger_url, "journal", journal_tables.MIGRATIONS[:version], JOURNAL)
    opened = an_attempt("open", fencing_token=5, frontdoor_id="frontdoor-1")

    with closing(open_journal(ledger_url, SetClock(wall_s=NOW_S))) as journal:
        (unfinished,) = journal.unfinished().result()
        done, held = journal.get("done", "tenant").result(), journal.find_key("tenant", "k2", "hash").result()
        newest, listed = unfinished.newest_attempt, journal.listing.page("tenant", frozenset(), False, 9).result()
        pin, told = journal.pins.find("tenant", "done").result(), journal.webhooks.delivery("open").result()
        spooled, plan = journal.objects.read_spooled("results/w").result(), journal.load_plan().result()
        named = journal.objects.named(["results/a", "inputs/a"]).result()
        forgotten = journal.forget_finished(NOW_S, 9).result()
        assert journal.identity().result() and journal.commit_result(opened, a_result()).result()

    stage = 1 if version >= 2 else 0
    assert (unfinished.request.request_id, unfinished.request.body, unfinished.route) == (
        "open",
        b"\x00body",
        b"\x00route",
    )
    assert unfinished.request.body_format == (1 if version >= 3 else 0)
    assert (unfinished.request.detached, unfinished.cascade_stage) == (version >= 7, stage)
    assert newest is not None and newest.attempt == opened
    assert (newest.worker_id, newest.cascade_stage, newest.handed_picture) == ("w", stage, b"")
    assert done is not None and (done.state, done.result) == (RequestState.COMPLETED, a_result())
    assert held is not None and (held.kind, held.request_id) == (AcceptKind.EXISTING, "done")
    assert {each.request.request_id for each in listed} == {"open", "done"}
    kept = PicturePin("done", "tenant", NOW_S + 9, 5000, (SpecInput("init_image", _INPUT),))
    assert pin == (kept if version >= 6 else None)
    assert told == (WebhookDelivery(WebhookState.PENDING, 2, "e") if version >= 7 else None)
    assert (spooled, plan) == (b"\x00w" if version >= 4 else None, b"\x00plan")
    assert named == ({"results/a", "inputs/a"} if version >= 6 else {"results/a"})
    assert [each.request.request_id for each in forgotten] == ([] if version >= 6 else ["done"])


def test_tenant_of_older_ledger_keeps_name_as_identity(ledger_url: str) -> None:
    quota = {"quota": "{}", "created_at": NOW_S, "revision": 3}
    write(ledger_url, "tenants", tenant_tables.MIGRATIONS[:1], {"tenants": [{"tenant": "acme"} | quota]})

    with closing(open_journal(ledger_url, SetClock(wall_s=NOW_S))) as journal:
        (kept,) = journal.tenants.tenants().result()
        journal.tenants.delete("acme").result()
        again = journal.tenants.create("acme", TenantQuota()).result()

    assert (kept, kept.identity, again.identity) == (Tenant("acme", TenantQuota(), NOW_S, 3), "acme", "*2*acme")


# What an older one's entries are found by means nothing any more: they leave the cache.
@pytest.mark.parametrize("version", range(3, len(cache_tables.MIGRATIONS)))
def test_open_cache_ledger_of_any_version_serves_its_rows(ledger_url: str, version: int) -> None:
    write(ledger_url, "cache", cache_tables.MIGRATIONS[:version], CACHE)

    with closing(open_cache_ledger(ledger_url, SetClock(wall_s=NOW_S))) as ledger:
        entry, totals, holding = ledger.live_entry("entry"), ledger.totals(), ledger.holding("tenant")
        pinned, limits = ledger.kept_by_pins(), ledger.tenant_limits()
        wrong, deletable = ledger.check_integrity(), ledger.deletable_keys(9)
        # Once there is no room.
        evicted = ledger.evict(
            lambda held: next((name for name, of_it in held.items() if of_it.entry_count), None), 0.0
        ).result()
        empty = ledger.holdings()

    assert entry is not None and (entry.pool, entry.tenant, entry.ancestor_depth) == ("pool", "tenant", 2)
    assert entry.request_id == ("r1" if version >= 7 else "")
    found = [(latent.resume_step, latent.object, latent.compatibility_key) for latent in entry.latents]
    assert found == [(5, _KEPT, "key")]
    assert (totals.entry_count, totals.size_bytes, totals.open_grant_count) == (1, 10, 1)
    assert holding == CacheHolding(1, 10)
    assert (pinned, deletable) == (([_PINNED], []) if version >= 5 else ([], [_PINNED.key]))
    assert limits == ({"tenant": 77} if version >= 8 else {})
    assert (wrong, evicted, empty) == ([], 1, {})


def write(
    url: str, component: str, migrations: Sequence[Migration], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Make a ledger of an earlier version with those rows of the tables and columns that it had."""
    engine = open_engine(url)
    migrate(engine, component, migrations)
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for table in tables.sorted_tables:
            for row in rows.get(table.name, ()):
                connection.execute(insert(table), {column: row[column] for column in row if column in table.c})
    engine.dispose()
