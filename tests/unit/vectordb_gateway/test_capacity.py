"""Test the exact limits of the cache, and the message for a reached one."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pentimento.domain.cache import CacheHolding
from pentimento.stores.ledger.cache.records import CacheTotals
from services.vectordb_gateway.entries import capacity
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.settings import CapacitySettings, EvictionChoice, GatewayBounds

SETTINGS = CapacitySettings(max_entries=10, max_size_bytes=1000, max_store_bytes=2000, eviction=EvictionChoice.NONE)
BOUNDS = GatewayBounds(min_free_bytes=500)


@pytest.fixture(autouse=True)
def few_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "MAX_OPEN_GRANTS", 4)
    monkeypatch.setattr(capacity, "MAX_TENANT_GRANTS", 2)


EMPTY = CacheTotals(entry_count=0, object_count=0, size_bytes=0, open_grant_count=0)


class FilledLedger:
    """A ledger with given totals."""

    cache_id = "c"

    def __init__(self, totals: CacheTotals, open_grants: int, pinned_bytes: int) -> None:
        self._totals = totals
        self._open_grants = open_grants
        self._pinned_bytes = pinned_bytes

    def totals(self) -> CacheTotals:
        return self._totals

    def open_grant_count(self, tenant: str) -> int:
        return self._open_grants

    def holding(self, tenant: str) -> CacheHolding:
        return CacheHolding(1, 500)

    def tenant_limits(self) -> dict[str, int]:
        return {}

    def limit_tenant(self, tenant: str, most_bytes: int | None) -> "Future[None]":
        written: Future[None] = Future()
        written.set_result(None)
        return written

    def newest_number(self) -> int:
        return 0

    def pinned_totals(self) -> tuple[int, int]:
        return 1, self._pinned_bytes

    def holdings(self) -> dict[str, Any]:
        return {}


def capacity_of(
    totals: CacheTotals = EMPTY,
    open_grants: int = 0,
    free_bytes: int | None = 500,
    stored_bytes: int = 0,
    pinned_bytes: int = 0,
) -> Capacity:
    """Return one that has looked at its store and its limits."""
    objects = SimpleNamespace(
        free_bytes=lambda: free_bytes,
        usage=lambda prefix: SimpleNamespace(object_count=1, size_bytes=stored_bytes),
    )
    ledger = FilledLedger(totals, open_grants, pinned_bytes)
    capacity = Capacity(ledger, objects, SETTINGS, BOUNDS)  # type: ignore[arg-type]
    capacity.measure_store()
    capacity.enforce()
    return capacity


@pytest.mark.parametrize(
    "within, beyond, why",
    [
        ({"totals": replace(EMPTY, open_grant_count=3)}, {"totals": replace(EMPTY, open_grant_count=4)}, "are open"),
        ({"open_grants": 1}, {"open_grants": 2}, "grants of the tenant"),
        ({"totals": replace(EMPTY, entry_count=9)}, {"totals": replace(EMPTY, entry_count=10)}, "all 10 entries"),
        ({"totals": replace(EMPTY, size_bytes=999)}, {"totals": replace(EMPTY, size_bytes=1000)}, "all 1000 bytes"),
        ({"free_bytes": 500}, {"free_bytes": 499}, "499 bytes free"),
        ({"stored_bytes": 2000}, {"stored_bytes": 2001}, "2000 are allowed"),
        ({"stored_bytes": 2100, "pinned_bytes": 100}, {"stored_bytes": 2100, "pinned_bytes": 99}, "2000 are allowed"),
        ({"free_bytes": None}, {"free_bytes": 0}, "0 bytes free"),
    ],
)
def test_reserve_is_granted_up_to_the_limit(within: dict[str, Any], beyond: dict[str, Any], why: str) -> None:
    assert capacity_of(**within).refusal("acme") == ""
    assert why in capacity_of(**beyond).refusal("acme")


@pytest.mark.parametrize("most_bytes, refused", [(0, True), (500, True), (501, False), (None, False)])
def test_tenant_at_its_limit_gets_no_grant(most_bytes: int | None, refused: bool) -> None:
    capacity = capacity_of()

    capacity.tenants.set("acme", most_bytes)

    assert bool(capacity.refusal("acme")) == refused
