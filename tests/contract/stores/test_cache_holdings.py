"""Test that the database keeps tenants' totals equal to a sum over all entries, for every writer."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import count
from random import Random

from sqlalchemy import text

from lab.fixtures.clocks import SetClock
from pentimento.domain.cache import CacheHolding
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.ledger.database import open_engine
from tests.contract.stores.cache_records import STEPS, add, down_to

_SUM = "SELECT tenant, COUNT(*), SUM(size_bytes) FROM cache_entries WHERE doomed_at IS NULL GROUP BY tenant"


def summed(url: str) -> dict[str, CacheHolding]:
    engine = open_engine(url)
    with engine.connect() as connection:
        found = {
            tenant: CacheHolding(entries, int(size_bytes))
            for tenant, entries, size_bytes in connection.execute(text(_SUM))
        }
    engine.dispose()
    return found


def test_holdings_of_concurrent_gateways_equal_sums(ledger_url: str) -> None:
    chance, names, live = Random(0), count(), list[str]()
    gateways = [open_cache_ledger(ledger_url) for _ in range(3)]
    limits = [(chance.randint(1, 20), chance.randint(1, 12)) for _ in range(24)]

    def put(gateway: CacheLedger) -> None:
        live.append(add(gateway, str(next(names)), STEPS[: chance.randint(1, 3)], chance.choice("abc")))

    def doom(gateway: CacheLedger) -> None:
        gateway.doom(chance.sample(live, min(2, len(live))), grace_s=0).result()

    def evict(gateway: CacheLedger) -> None:
        gateway.evict(down_to(*chance.choice(limits)), grace_s=0).result()

    def evict_items(gateway: CacheLedger) -> None:
        gateway.evict_items(down_to(*chance.choice(limits)), grace_s=0).result()

    acts: list[Callable[[CacheLedger], None]] = [put, put, put, put, put, doom, evict, evict_items]
    with ThreadPoolExecutor(3) as threads:
        done: list[Future[None]] = [
            threads.submit(chance.choice(acts), gateway) for _ in range(60) for gateway in gateways
        ]
        for future in done:
            future.result()

    assert gateways[0].holdings() == summed(ledger_url)
    assert gateways[0].check_integrity() == []
    for gateway in gateways:
        gateway.close()


def test_holdings_count_rows_of_any_writer(ledger_url: str, clock: SetClock) -> None:
    with closing(open_cache_ledger(ledger_url, clock)) as ledger:
        engine = open_engine(ledger_url)
        with engine.begin() as connection:
            for number, tenant in enumerate("aabc"):
                connection.execute(text(inserted_entry(number, tenant)))
        with engine.begin() as connection:
            connection.execute(text("UPDATE cache_entries SET size_bytes = 4, object_count = 0 WHERE sequence = 0"))
            connection.execute(text("UPDATE cache_entries SET doomed_at = 5 WHERE sequence = 2"))
            connection.execute(text("UPDATE cache_entries SET indexed = 1"))
            connection.execute(text("DELETE FROM cache_entries WHERE sequence = 2"))
        engine.dispose()

        assert ledger.holdings() == {"a": CacheHolding(2, 14), "c": CacheHolding(1, 10)}


def inserted_entry(number: int, tenant: str) -> str:
    """Return the statement that inserts an entry of ten bytes."""
    return (
        "INSERT INTO cache_entries (entry_id, pool, tenant, created_at, sequence, ancestor_depth, text_vector,"
        " object_count, size_bytes, rank_score, rank_tie, indexed, request_id, repeat_key)"
        f" VALUES ('e{number}', '{tenant}', '{tenant}', 1, {number}, 0, '', 1, 10, 0, 0, 0, 'r', '')"
    )
