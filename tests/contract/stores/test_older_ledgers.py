"""Test ledgers of the baseline versions, on SQLite and PostgreSQL, and the refusal of older ones."""

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from lab.fixtures.clocks import SetClock
from pentimento.domain.cache import CacheHolding
from pentimento.domain.embedding import Space
from pentimento.domain.generation import ObjectReference, SpecInput
from pentimento.domain.jobs import RequestState, WebhookDelivery, WebhookState
from pentimento.domain.models import RegisteredRow
from pentimento.domain.tenants import Tenant, TenantQuota
from pentimento.stores.errors import SchemaMismatch
from pentimento.stores.ledger import fleet_tables, open_journal, tenant_tables
from pentimento.stores.ledger.cache import tables as cache_tables
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger
from pentimento.stores.ledger.journal import tables as journal_tables
from pentimento.stores.ledger.journal.records import AcceptKind, PicturePin
from pentimento.stores.ledger.migrations import Schema, migrate
from tests.contract.stores.cache_records import reference
from tests.contract.stores.records import NOW_S
from tests.support.journals import a_result
from tests.support.older_ledgers import set_version, write_baseline
from tests.support.values import an_attempt

_INPUT = ObjectReference("inputs/a", "sha256:b", 7)
_KEPT, _PINNED = reference("cache/a/5"), reference("cache/a/10")
SCHEMAS = (cache_tables.SCHEMA, fleet_tables.SCHEMA, journal_tables.SCHEMA, tenant_tables.SCHEMA)


def test_open_journal_of_baseline_serves_its_rows(ledger_url: str) -> None:
    write_baseline(ledger_url)
    opened = an_attempt("open", fencing_token=5, frontdoor_id="frontdoor-1")

    with closing(open_journal(ledger_url, SetClock(wall_s=NOW_S))) as journal:
        (unfinished,) = journal.unfinished().result()
        done, held = journal.get("done", "tenant").result(), journal.find_key("tenant", "k2", "hash").result()
        newest, listed = unfinished.newest_attempt, journal.listing.page("tenant", frozenset(), False, 9).result()
        pin, told = journal.pins.find("tenant", "done").result(), journal.webhooks.delivery("open").result()
        spooled, plan = journal.objects.read_spooled("results/w").result(), journal.load_plan().result()
        named = journal.objects.named(["results/a", "inputs/a"]).result()
        (tenant,) = journal.tenants.tenants().result()
        assert journal.identity().result() and journal.commit_result(opened, a_result()).result()

    request = unfinished.request
    assert (request.request_id, request.body, request.body_format) == ("open", b"\x00body", 1)
    assert (request.detached, unfinished.route, unfinished.cascade_stage) == (True, b"\x00route", 1)
    assert newest is not None and newest.attempt == opened
    assert (newest.worker_id, newest.cascade_stage, newest.handed_picture) == ("w", 1, b"\x00image")
    assert done is not None and (done.state, done.result) == (RequestState.COMPLETED, a_result())
    assert held is not None and (held.kind, held.request_id) == (AcceptKind.EXISTING, "done")
    assert {each.request.request_id for each in listed} == {"open", "done"}
    assert pin == PicturePin("done", "tenant", NOW_S + 9, 5000, (SpecInput("init_image", _INPUT),))
    assert told == WebhookDelivery(WebhookState.PENDING, 2, "e")
    assert (spooled, plan, named) == (b"\x00w", b"\x00plan", {"results/a", "inputs/a"})
    assert (tenant, tenant.identity) == (Tenant("acme", TenantQuota(), NOW_S, 3, "acme"), "acme")


def test_open_cache_ledger_of_baseline_serves_its_rows(ledger_url: str) -> None:
    write_baseline(ledger_url)

    with closing(open_cache_ledger(ledger_url, SetClock(wall_s=NOW_S))) as ledger:
        entry, totals, holding = ledger.live_entry("entry"), ledger.totals(), ledger.holding("tenant")
        pinned, limits = ledger.kept_by_pins(), ledger.tenant_limits()
        wrong, deletable = ledger.check_integrity(), ledger.deletable_keys(9)
        # Evict until the cache is empty.
        evicted = ledger.evict(
            lambda held: next((name for name, of_it in held.items() if of_it.entry_count), None), 0.0
        ).result()
        empty = ledger.holdings()

    assert entry is not None and (entry.pool, entry.tenant, entry.ancestor_depth) == ("pool", "tenant", 2)
    found = [(latent.resume_step, latent.object, latent.compatibility_key) for latent in entry.latents]
    assert (entry.request_id, found) == ("r1", [(5, _KEPT, "key")])
    assert (totals.entry_count, totals.size_bytes, totals.open_grant_count) == (1, 10, 1)
    assert (holding, pinned, deletable) == (CacheHolding(1, 10), [_PINNED], [])
    assert (limits, wrong, evicted, empty) == ({"tenant": 77}, [], 1, {})


@pytest.mark.parametrize("image_vector", ["NULL", "text_vector"])
def test_open_cache_ledger_of_baseline_binds_spaces_with_vectors(ledger_url: str, image_vector: str) -> None:
    write_baseline(ledger_url)
    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE cache_entries SET image_vector = {image_vector}"))
    engine.dispose()

    with closing(open_cache_ledger(ledger_url, SetClock(wall_s=NOW_S))) as ledger:
        bound = ledger.bindings()

    expected = {Space.TEXT: EncoderBinding("e", 2)}
    if image_vector != "NULL":
        expected[Space.IMAGE] = EncoderBinding("e", 2, Space.IMAGE)
    assert bound == expected


def test_open_fleet_ledger_of_baseline_serves_its_rows(ledger_url: str) -> None:
    write_baseline(ledger_url)

    with closing(open_fleet_ledger(ledger_url, SetClock(wall_s=NOW_S))) as ledger:
        assert ledger.load_plan().result() == b"\x00plan"
        assert ledger.registered().result() == [RegisteredRow("model", "m", "sha256:m", "{}")]


def test_new_ledger_has_tables_of_migrated_one(ledger_url: str, request: pytest.FixtureRequest) -> None:
    write_baseline(ledger_url)
    migrated, made = _migrated(ledger_url), _migrated(f"{ledger_url}.new" if "sqlite" in ledger_url else _new(request))

    assert _tables(made) == _tables(migrated)
    assert _tables(made)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.component)
def test_ledger_from_before_baseline_is_refused(ledger_url: str, schema: Schema) -> None:
    if schema.baseline > 1:
        set_version(ledger_url, schema, schema.baseline - 1)
        engine = open_engine(ledger_url)

        with pytest.raises(SchemaMismatch, match=f"has schema version {schema.baseline - 1}, .*start commit [0-9a-f]"):
            migrate(engine, schema)
        engine.dispose()


def _new(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgresql").new_database()
    return url


def _migrated(url: str) -> Engine:
    engine = open_engine(url)
    for schema in SCHEMAS:
        migrate(engine, schema)
    return engine


def _tables(engine: Engine) -> dict[str, Any]:
    found = inspect(engine)
    tables = {
        table: (
            # SQLite permits NULL keys in the older tables.
            {each["name"]: (each["type"]._type_affinity, each["nullable"]) for each in found.get_columns(table)}
            | dict.fromkeys(found.get_pk_constraint(table)["constrained_columns"]),
            {(*each["constrained_columns"], each["referred_table"]) for each in found.get_foreign_keys(table)},
            {tuple(each["column_names"]) for each in found.get_unique_constraints(table)},
            {
                (each["name"], *each["column_names"], each["unique"], *_conditions(each))
                for each in found.get_indexes(table)
                if not each.get("duplicates_constraint")
            },
        )
        for table in found.get_table_names()
    }
    engine.dispose()
    return tables


def _conditions(index: Any) -> list[str]:
    return [str(value) for name, value in index.get("dialect_options", {}).items() if name.endswith("_where")]
