"""The cache ledger's promises, on SQLite and on PostgreSQL."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError
from pentimento.domain.generation import CapturedEntries, CapturedLatent
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache_records import (
    CachedEntry,
    CacheTotals,
    EncoderBinding,
    EntryVectors,
    HeldLatent,
)
from pentimento.stores.ledger.database import open_engine
from tests.contract.stores.cache_records import VECTOR, add, commit, grant, reference


def test_a_committed_entry_is_live_with_what_was_captured(ledger: CacheLedger) -> None:
    ledger.reserve(grant(steps=(5, 10, None))).result()

    entry_id = ledger.commit(commit(steps=(5, 10), image=True)).result()

    latents = (
        HeldLatent(5, 0.5, reference("cache/g1/5"), "free"),
        HeldLatent(10, 1.0, reference("cache/g1/10"), "adapted"),
    )
    image = reference("cache/g1/image")
    expected = CachedEntry(entry_id, "pool", 1000.0, 2, latents, image, "image", "tenant", "r1")
    assert ledger.live_entry(entry_id) == expected
    assert ledger.totals() == CacheTotals(entry_count=1, object_count=3, size_bytes=30, open_grant_count=0)


def test_granted_keys_are_known_before_anything_is_uploaded(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()

    assert ledger.known_keys(["cache/g1/5", "cache/other"]) == {"cache/g1/5"}
    assert ledger.totals().open_grant_count == 1


def test_commit_is_idempotent_by_grant(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()
    first = ledger.commit(commit()).result()

    assert ledger.commit(commit()).result() == first
    assert ledger.totals().entry_count == 1


def test_one_of_many_concurrent_commits_makes_the_entry(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()

    with ThreadPoolExecutor(8) as threads:
        futures = list(threads.map(lambda _: ledger.commit(commit()), range(16)))

    assert len({future.result() for future in futures}) == 1
    assert ledger.totals().entry_count == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant", "other"),
        ("pool", "other"),
        ("scope_digest", "other"),
        ("request_id", "r2"),
        ("fencing_token", 6),
    ],
)
def test_only_the_attempt_that_reserved_may_commit(ledger: CacheLedger, field: str, value: object) -> None:
    ledger.reserve(grant()).result()

    with pytest.raises(FailedPrecondition, match=field):
        ledger.commit(replace(commit(), **{field: value})).result()  # type: ignore[arg-type]

    assert ledger.totals().entry_count == 0
    assert ledger.commit(commit()).result()


@pytest.mark.parametrize("steps", [(5, 15), (10, 10), ()])
def test_only_granted_keys_can_be_committed_each_once(ledger: CacheLedger, steps: tuple[int, ...]) -> None:
    ledger.reserve(grant()).result()

    with pytest.raises(InvalidArgument):
        ledger.commit(commit(steps=steps)).result()

    assert ledger.totals().entry_count == 0


def test_a_key_cannot_be_committed_as_another_step(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()
    latent = CapturedLatent(10, 1.0, reference("cache/g1/5"), True)

    with pytest.raises(InvalidArgument):
        ledger.commit(replace(commit(), captured=CapturedEntries("g1", (latent,)))).result()


def test_a_grant_that_never_was_is_not_found(ledger: CacheLedger) -> None:
    with pytest.raises(NotFound):
        ledger.commit(commit("unknown")).result()


def test_new_entries_wait_for_the_index(ledger: CacheLedger) -> None:
    first, second = add(ledger, "g1"), add(ledger, "g2")

    new = ledger.unindexed(10)
    assert [vectors.entry_id for vectors in new] == [first, second]
    assert [vectors.entry_id for vectors in ledger.unindexed(10, after=new[0].sequence)] == [second]
    assert [vectors.entry_id for vectors in ledger.newest_unindexed(10)] == [second, first]
    assert [vectors.entry_id for vectors in ledger.newest_unindexed(1)] == [second]
    ledger.mark_indexed(new[:1]).result()

    number = new[1].sequence
    assert ledger.unindexed(10) == [EntryVectors(number, second, "pool", ("adapted", "free"), 1000.0, VECTOR, None)]
    assert ledger.indexed_ids([first, second]) == {first}
    ledger.mark_unindexed([first]).result()
    assert ledger.indexed_ids([first, second]) == set()


def test_the_first_entry_binds_the_cache_to_its_encoder(ledger: CacheLedger) -> None:
    for name in ("g1", "g2"):
        ledger.reserve(grant(name)).result()
    assert ledger.binding() is None

    ledger.commit(commit("g1"), EncoderBinding("one", 2)).result()
    with pytest.raises(InvalidArgument, match="encoder_digest"):
        ledger.commit(commit("g2"), EncoderBinding("two", 3)).result()

    assert ledger.binding() == EncoderBinding("one", 2)
    assert (ledger.totals().entry_count, ledger.totals().open_grant_count) == (1, 1)


def test_a_commit_that_is_refused_binds_nothing(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()
    for refused in (commit("unknown"), replace(commit(), tenant="other"), commit(steps=())):
        with pytest.raises(PentimentoError):
            ledger.commit(refused, EncoderBinding("one", 2)).result()

    assert ledger.binding() is None


def test_caches_keep_their_id_and_two_have_different_ones(
    ledger_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def cache_id(url: str) -> str:
        ledger = open_cache_ledger(url)
        ledger.close()
        return ledger.cache_id

    other = f"sqlite:///{tmp_path_factory.mktemp('other')}/ledger.sqlite"
    assert cache_id(ledger_url) == cache_id(ledger_url) != cache_id(other)


def test_what_was_asked_before_it_was_closed_is_committed_and_nothing_is_taken_after(ledger_url: str) -> None:
    closed = open_cache_ledger(ledger_url)
    asked = closed.reserve(grant())

    closed.close()

    assert asked.done() and asked.exception() is None
    with pytest.raises(StoreUnavailable, match="it is closed"):
        closed.doom(["any"], 0.0)


def test_vectors_are_read_by_the_numbers_of_their_entries_so_many_at_a_time(ledger: CacheLedger) -> None:
    for name in ("g1", "g2", "g3"):
        add(ledger, name, (5,))

    first = ledger.vectors_after(0, 2)
    rest = ledger.vectors_after(first[-1].sequence, 2)

    assert [entry.sequence for entry in (*first, *rest)] == ledger.live_sequences()
    assert (len(first), len(rest)) == (2, 1)
    assert {(entry.pool, entry.text) for entry in first} == {("pool", VECTOR)}


def test_rows_and_references_are_told_of_live_and_doomed_entries(ledger: CacheLedger) -> None:
    kept, doomed = add(ledger, "g1", (5,)), add(ledger, "g2", (5,))
    ledger.doom([doomed], 10.0).result()

    assert ledger.entry_ids() == sorted([kept, doomed])
    assert ledger.held_references() == [reference("cache/g1/5")]


def test_only_live_entries_are_to_be_in_the_index(ledger: CacheLedger) -> None:
    kept, doomed, other = (add(ledger, name) for name in ("g1", "g2", "g3"))
    ledger.mark_indexed(ledger.unindexed(10)).result()
    ledger.doom([doomed], 10.0).result()

    assert ledger.indexed_ids([kept, doomed, "unknown"]) == {kept}
    assert ledger.indexed_ids([kept, other]) == {kept, other}


def test_ids_are_read_by_ranges(ledger: CacheLedger) -> None:
    ids = sorted(add(ledger, f"g{number}") for number in range(6))

    assert ledger.entry_ids() == ids
    assert ledger.entry_ids(limit_count=4) == ids[:4]
    assert ledger.entry_ids(ids[1], ids[4]) == ids[2:5]
    assert ledger.entry_ids(ids[3], limit_count=4) == ids[4:]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE cache_state SET entry_count = 7", "totals say (7, 1, 10) entries, objects and bytes, rows (1, 1, 10)"),
        (
            "UPDATE cache_state SET object_count = 7",
            "totals say (1, 7, 10) entries, objects and bytes, rows (1, 1, 10)",
        ),
        ("UPDATE cache_state SET size_bytes = 7", "totals say (1, 1, 7) entries, objects and bytes, rows (1, 1, 10)"),
        (
            "UPDATE cache_holdings SET size_bytes = 7",
            "tenant tenant is said to hold (1, 7) entries and bytes, rows (1, 10)",
        ),
        ("DELETE FROM cache_holdings", "tenant tenant is said to hold None entries and bytes, rows (1, 10)"),
        (
            "UPDATE cache_objects SET entry_id = NULL, grant_id = 'gone'",
            "object cache/g1/5 belongs to no grant and no live entry, and is not doomed",
        ),
    ],
)
def test_what_contradicts_itself_is_told(ledger_url: str, damage: str, told: str) -> None:
    damaged = open_cache_ledger(ledger_url)
    add(damaged, "g1", (5,))
    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(damage))
    engine.dispose()

    found = damaged.check_integrity()

    damaged.close()
    assert found == [told]


def test_an_entry_keeps_the_vector_of_its_image(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()
    ledger.commit(replace(commit(), image_vector=b"image")).result()

    assert [vectors.image for vectors in ledger.unindexed(10)] == [b"image"]


def test_an_entry_is_found_under_the_key_of_each_object_that_it_holds(ledger: CacheLedger) -> None:
    ledger.reserve(grant(steps=(5, 10, None))).result()
    ledger.commit(commit(steps=(10,), image=True)).result()

    assert [vectors.compatibility_keys for vectors in ledger.unindexed(10)] == [("adapted", "image")]


def test_vectors_are_not_printed(ledger: CacheLedger) -> None:
    secret = replace(commit(), text_vector=b"secret", image_vector=b"secret")

    printed = f"{secret} {EntryVectors(1, 'e', 'pool', ('free',), 0.0, b'secret', b'secret')}"

    assert "secret" not in printed


def refusals(ledger: CacheLedger) -> Iterator[tuple[str, list[str]]]:
    """Reason and fields of every way in which a commit may be wrong."""
    ledger.reserve(grant()).result()
    wrong = (commit("unknown"), replace(commit(), tenant="other"), commit(steps=()))
    for each in wrong:
        with pytest.raises(PentimentoError) as refused:
            ledger.commit(each).result()
        yield refused.value.reason, [violation.field for violation in refused.value.violations]


def test_a_refused_commit_says_why(ledger: CacheLedger) -> None:
    assert list(refusals(ledger)) == [
        ("GRANT_GONE", []),
        ("GRANT_MISMATCH", []),
        ("INVALID_FIELD", ["entries"]),
    ]


def test_reads_do_not_wait_for_who_writes_in_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with closing(open_cache_ledger(url)) as ledger, closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")

        assert ledger.totals().entry_count == 0


def test_a_cache_s_id_is_64_random_bits(ledger: CacheLedger) -> None:
    assert len(bytes.fromhex(ledger.cache_id)) == 8


def test_a_grant_of_nothing_is_kept_and_given_back(ledger: CacheLedger) -> None:
    ledger.reserve(grant(steps=())).result()

    assert ledger.totals().open_grant_count == 1
    assert ledger.release("g1").result()
