"""Test calls of the cache ledger that no history has (test_cache_machine.py), on SQLite and on PostgreSQL."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, text

from lab.fixtures.clocks import SetClock
from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache import tables as cache_tables
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache.records import EncoderBinding, EntryCommit, EntryVectors, ObjectPin
from pentimento.stores.ledger.database import open_engine
from tests.contract.stores.cache_records import VECTOR, add, bind, commit, down_to, grant, reference


def test_commit_concurrent_calls_make_one_entry(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()

    with ThreadPoolExecutor(8) as threads:
        futures = list(threads.map(lambda _: ledger.commit(commit()), range(16)))

    assert len({future.result() for future in futures}) == 1
    assert ledger.totals().entry_count == 1


def test_commit_first_entry_binds_cache_to_encoder(ledger: CacheLedger) -> None:
    for name in ("g1", "g2"):
        ledger.reserve(grant(name)).result()
    assert ledger.binding() is None

    ledger.commit(commit("g1"), EncoderBinding("one", 2)).result()
    with pytest.raises(InvalidArgument, match="encoder_digest"):
        ledger.commit(commit("g2"), EncoderBinding("two", 3)).result()

    assert ledger.binding() == EncoderBinding("one", 2)
    assert (ledger.totals().entry_count, ledger.totals().open_grant_count) == (1, 1)


def test_commit_binds_each_space_to_its_encoder(ledger: CacheLedger) -> None:
    for name in ("g1", "g2", "g3"):
        ledger.reserve(grant(name)).result()
    text, image = EncoderBinding("one", 2), EncoderBinding("clip", 3, Space.IMAGE)

    ledger.commit(commit("g1"), text).result()
    before = ledger.bindings()
    ledger.commit(commit("g2"), text, image).result()
    with pytest.raises(InvalidArgument, match=r"image_embedding\.encoder_digest: must be clip, .* cache's images"):
        ledger.commit(commit("g3"), replace(image, encoder_digest="other")).result()

    assert before == {Space.TEXT: text}
    assert ledger.bindings() == {Space.TEXT: text, Space.IMAGE: image}


def test_replace_encoder_of_images_drops_their_vectors_alone(ledger: CacheLedger) -> None:
    ledger.reserve(grant("g1", (5, None))).result()
    text, image = EncoderBinding("one", 2), EncoderBinding("clip", 2, Space.IMAGE)
    entry_id = ledger.commit(replace(commit("g1", (5,), image=True), image_vector=VECTOR), text, image).result()
    ledger.mark_indexed(ledger.unindexed(9)).result()
    before, removal_count = ledger.live_entry(entry_id), ledger.removal_count

    ledger.replace_encoder(replace(image, encoder_digest="siglip", dimension_count=3), 9.0).result()

    entry, (vectors,) = ledger.live_entry(entry_id), ledger.unindexed(9)
    assert before is not None and before.is_seen
    assert entry == replace(before, is_seen=False)
    assert (vectors.text, vectors.image) == (VECTOR, None)
    assert ledger.bindings() == {Space.TEXT: text, Space.IMAGE: EncoderBinding("siglip", 3, Space.IMAGE)}
    assert ledger.removal_count > removal_count
    with pytest.raises(InvalidArgument, match=r"image_embedding\.encoder_digest: must be siglip"):
        ledger.reserve(grant("g2")).result()
        ledger.commit(commit("g2"), text, image).result()


def test_replace_encoder_of_texts_drops_the_entries(ledger: CacheLedger) -> None:
    for number in range(300):
        add(ledger, f"g{number}", steps=(5,))
    bind(ledger, EncoderBinding("one", 2))

    ledger.replace_encoder(EncoderBinding("two", 3), 9.0).result()

    assert (ledger.totals().entry_count, ledger.binding()) == (0, EncoderBinding("two", 3))
    assert len(ledger.doomed_ids(1000)) == 300
    assert ledger.deletable_keys(9) == []


def test_cache_id_is_kept_and_unique(ledger_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    def cache_id(url: str) -> str:
        ledger = open_cache_ledger(url)
        ledger.close()
        return ledger.cache_id

    other = f"sqlite:///{tmp_path_factory.mktemp('other')}/ledger.sqlite"
    assert cache_id(ledger_url) == cache_id(ledger_url) != cache_id(other)
    assert len(bytes.fromhex(cache_id(other))) == 8


def test_close_commits_queued_calls_and_refuses_later_ones(ledger_url: str) -> None:
    closed = open_cache_ledger(ledger_url)
    asked = closed.reserve(grant())

    closed.close()

    assert asked.done() and asked.exception() is None
    with pytest.raises(StoreUnavailable, match="it is closed"):
        closed.doom(["any"], 0.0)


def test_vectors_after_pages_by_sequence(ledger: CacheLedger) -> None:
    for name in ("g1", "g2", "g3"):
        add(ledger, name, (5,))

    first = ledger.vectors_after(0, 2)
    rest = ledger.vectors_after(first[-1].sequence, 2)

    assert [entry.sequence for entry in (*first, *rest)] == ledger.live_sequences()
    assert (len(first), len(rest)) == (2, 1)
    assert {(entry.pool, entry.text) for entry in first} == {("pool", VECTOR)}


def test_entry_ids_of_range_include_doomed_ones(ledger: CacheLedger) -> None:
    ids = sorted(add(ledger, f"g{number}") for number in range(6))
    ledger.doom(ids[:1], 10.0).result()

    assert ledger.entry_ids() == ids
    assert ledger.entry_ids(limit_count=4) == ids[:4]
    assert ledger.entry_ids(ids[1], ids[4]) == ids[2:5]
    assert ledger.entry_ids(ids[3], limit_count=4) == ids[4:]


TOTALS, ROWS = "totals say", "entries, objects and bytes, rows (1, 1, 10)"
HOLDING = "tenant tenant is said to hold"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE cache_state SET entry_count = 7", f"{TOTALS} (7, 1, 10) {ROWS}"),
        ("UPDATE cache_state SET object_count = 7", f"{TOTALS} (1, 7, 10) {ROWS}"),
        ("UPDATE cache_state SET size_bytes = 7", f"{TOTALS} (1, 1, 7) {ROWS}"),
        ("UPDATE cache_holdings SET size_bytes = 7", f"{HOLDING} (1, 7) entries and bytes, rows (1, 10)"),
        ("DELETE FROM cache_holdings", f"{HOLDING} None entries and bytes, rows (1, 10)"),
        (
            "UPDATE cache_objects SET entry_id = NULL, grant_id = 'gone'",
            "object g1/5 belongs to no grant and no live entry, and is not doomed",
        ),
    ],
)
def test_check_integrity_of_damaged_rows_names_contradiction(ledger_url: str, damage: str, told: str) -> None:
    damaged = open_cache_ledger(ledger_url)
    add(damaged, "g1", (5,))
    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(damage))
    engine.dispose()

    found = damaged.check_integrity()

    damaged.close()
    assert found == [told]


def test_records_repr_hides_vectors(ledger: CacheLedger) -> None:
    secret = replace(commit(), text_vector=b"secret", image_vector=b"secret")

    printed = f"{secret} {EntryVectors(1, 'e', 'pool', ('free',), 0.0, b'secret', b'secret')}"

    assert "secret" not in printed


def test_read_does_not_wait_for_writer_of_other_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with closing(open_cache_ledger(url)) as ledger, closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")

        assert ledger.totals().entry_count == 0


@pytest.mark.parametrize(
    ("wrong", "reason", "words"),
    [
        (commit("unknown"), "GRANT_GONE", "the grant has expired, was released, or never was"),
        (replace(commit(), tenant="other"), "GRANT_MISMATCH", "the grant was made for another tenant"),
        (commit(steps=()), "INVALID_FIELD", "entries: must be one or more of the grant's keys"),
    ],
    ids=["unknown", "tenant", "no keys"],
)
def test_commit_refused_names_reason_and_binds_nothing(
    ledger: CacheLedger, wrong: EntryCommit, reason: str, words: str
) -> None:
    ledger.reserve(grant()).result()

    with pytest.raises(PentimentoError, match=words) as refused:
        ledger.commit(wrong, EncoderBinding("one", 2)).result()

    assert (refused.value.reason, ledger.binding(), ledger.totals().entry_count) == (reason, None, 0)


def test_tenant_limits_survive_restart_unless_taken_back(ledger_url: str) -> None:
    first = open_cache_ledger(ledger_url)
    assert first.tenant_limits() == {}
    for tenant, most_bytes in (("a", 5), ("b", 0), ("c", 7), ("a", 2**40), ("c", None), ("never", None)):
        first.limit_tenant(tenant, most_bytes).result()
    first.close()

    with closing(open_cache_ledger(ledger_url)) as second:
        assert second.tenant_limits() == {"a": 2**40, "b": 0}


def pin(ledger: CacheLedger, request_id: str, until: float = 2000.0) -> None:
    ledger.pin(ObjectPin("tenant", request_id, reference("g1/5"), until), "*shared*").result()


def test_expire_grants_deletes_ended_pins(ledger: CacheLedger, clock: SetClock) -> None:
    add(ledger, "g1", (5,))
    pin(ledger, "r1", until=1500.0)
    pin(ledger, "r2", until=2500.0)
    clock.wall_s = 1500.0

    ledger.expire_grants().result()

    with ledger._engine.connect() as connection:
        assert connection.scalars(select(cache_tables.pins.c.request_id)).all() == ["r2"]


def test_check_integrity_names_pin_of_lost_object(ledger: CacheLedger) -> None:
    entry_id = add(ledger, "g1", (5,))
    pin(ledger, "r1")
    evict_entry(ledger, entry_id)
    ledger.forget_objects(["g1/5"]).result()
    assert ledger.check_integrity() == ["the pin of request r1 is on object g1/5, which is not kept"]

    assert ledger.drop_pins("g1/5").result() == 1

    assert ledger.check_integrity() == []


def evict_entry(ledger: CacheLedger, entry_id: str) -> None:
    ledger.doom([entry_id], grace_s=0).result()
    ledger.forget_entries([entry_id]).result()


def test_pin_of_shared_object_stays_open_to_its_holder(ledger: CacheLedger) -> None:
    ledger.reserve(replace(grant(), pool="*shared*")).result()
    entry_id = ledger.commit(replace(commit(), pool="*shared*")).result()
    ours, theirs = (ObjectPin(tenant, "r1", reference("g1/5"), 2000.0) for tenant in ("other", "third"))
    ledger.pin(ours, "*shared*").result()
    evict_entry(ledger, entry_id)

    ledger.pin(ours, "*shared*").result()

    assert ledger.kept_by_pins() == [reference("g1/5")]
    with pytest.raises(NotFound, match="no longer stored"):
        ledger.pin(theirs, "*shared*").result()


def test_pin_of_object_that_is_being_deleted_is_refused(ledger: CacheLedger) -> None:
    evict_entry(ledger, add(ledger, "g1", (5,)))
    pin(ledger, "r1")
    assert ledger.claim_deletion(["g1/5"]).result() == []
    assert ledger.unpin("tenant", "r1").result() == 1

    assert ledger.claim_deletion(["g1/5"]).result() == ["g1/5"]

    with pytest.raises(NotFound) as gone:
        pin(ledger, "r1")
    assert (gone.value.reason, ledger.deletable_keys(10)) == ("ANCESTOR_GONE", ["g1/5"])


def test_mark_indexed_of_entry_that_lost_a_key_since_keeps_it_unindexed(ledger: CacheLedger) -> None:
    """Evict the first entry's only latent of the key "free"; the second entry keeps one latent of each key."""
    first, second = add(ledger, "g1", (5, 10)), add(ledger, "g2", (5, 10))
    read = ledger.unindexed(10)
    ledger.mark_indexed(read).result()

    ledger.evict_items(down_to(3), grace_s=0).result()
    # Another gateway's index had stored both entries before the eviction.
    ledger.mark_indexed(read).result()

    assert [(left.entry_id, left.compatibility_keys) for left in ledger.unindexed(10)] == [(first, ("adapted",))]
    assert ledger.indexed_ids([first, second]) == {second}
