"""Queries of each image to the cache's ledger take SQLite as many steps in a full cache as in an empty one."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.cache.records import ObjectPin
from tests.contract.stores.cache_records import add, commit, grant, reference


class Steps:
    """Instructions that SQLite ran on any connection."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.set_progress_handler(self._step, 1)

    def _step(self) -> int:
        self.count += 1
        return 0


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    event.listen(Engine, "connect", steps.watch)
    yield steps
    event.remove(Engine, "connect", steps.watch)


def mark_the_new_one(ledger: CacheLedger) -> None:
    ledger.mark_indexed(ledger.unindexed(10)).result()


ASKED: dict[str, Callable[[CacheLedger], object]] = {
    "totals": lambda ledger: ledger.totals(),
    "holding of a tenant": lambda ledger: ledger.holding("tenant"),
    "holdings": lambda ledger: ledger.holdings(),
    "open grants": lambda ledger: ledger.open_grant_count("tenant"),
    "new grant": lambda ledger: ledger.reserve(grant("other")).result(),
    "released grant": lambda ledger: ledger.release("open").result(),
    "new entry": lambda ledger: ledger.commit(commit("open")).result(),
    "entries to index": lambda ledger: ledger.unindexed(10),
    "indexed entry": mark_the_new_one,
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_full_cache_takes_no_more_steps_than_empty_one(
    asked: Callable[[CacheLedger], object], steps: Steps, tmp_path: Path
) -> None:
    in_an_empty_one = steps_in(asked, open_cache_ledger(f"sqlite:///{tmp_path}/empty.sqlite"), 2, steps)
    in_a_full_one = steps_in(asked, open_cache_ledger(f"sqlite:///{tmp_path}/full.sqlite"), 200, steps)

    assert 0 < in_a_full_one < 1.2 * in_an_empty_one


@pytest.mark.slow
def test_pinned_object_takes_no_more_steps_among_many(steps: Steps, tmp_path: Path) -> None:
    """Readers that meet a broken disk report one after the other."""
    among_few = steps_among_pins(open_cache_ledger(f"sqlite:///{tmp_path}/few.sqlite"), 2, steps)
    among_many = steps_among_pins(open_cache_ledger(f"sqlite:///{tmp_path}/many.sqlite"), 200, steps)

    assert 0 < among_many < 1.2 * among_few


def steps_among_pins(ledger: CacheLedger, pin_count: int, steps: Steps) -> int:
    for number in range(pin_count):
        entry_id, kept = add(ledger, f"g{number}", (5,)), reference(f"g{number}/5")
        ledger.pin(ObjectPin("tenant", f"r{number}", kept, 1e12), "*shared*").result()
        ledger.doom([entry_id], 0).result()
    steps.count = 0
    assert ledger.kept_by_pins("g1/5") == [reference("g1/5")]
    count = steps.count
    ledger.close()
    return count


def steps_in(asked: Callable[[CacheLedger], object], ledger: CacheLedger, entry_count: int, steps: Steps) -> int:
    for number in range(entry_count):
        add(ledger, f"g{number}")
    ledger.mark_indexed(ledger.unindexed(entry_count)).result()
    ledger.reserve(grant("open")).result()
    add(ledger, "new")
    steps.count = 0
    asked(ledger)
    count = steps.count
    ledger.close()
    return count
