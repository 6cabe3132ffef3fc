"""What is kept of tenants at most, in the cache's ledger, on SQLite and PostgreSQL."""

from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger


def test_bounds_are_there_after_a_restart_and_those_taken_back_are_not(ledger_url: str) -> None:
    first = open_cache_ledger(ledger_url)
    for tenant, most_bytes in (("a", 5), ("b", 0), ("c", 7), ("a", 2**40), ("c", None), ("never", None)):
        first.limit_tenant(tenant, most_bytes).result()
    first.close()

    second = open_cache_ledger(ledger_url)
    try:
        assert second.tenant_limits() == {"a": 2**40, "b": 0}
    finally:
        second.close()


def test_a_new_cache_bounds_nobody(ledger: CacheLedger) -> None:
    assert ledger.tenant_limits() == {}
