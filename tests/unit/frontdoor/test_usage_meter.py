"""What tenants use is counted while the ledger is away, and written once it is back."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from pentimento.domain.tenants import HOUR_S, UsageRow
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.tenant_ledger import TenantLedger
from pentimento.testing.clocks import SetClock
from services.frontdoor.tenants import usage
from services.frontdoor.tenants.usage import UsageMeter

NOW_S = 1_800_000_000.0


class Breaking(TenantLedger):
    """A ledger that may be away."""

    is_away = False

    def add_usage(self, rows: Sequence[UsageRow]) -> "Future[None]":
        if not self.is_away:
            return super().add_usage(rows)
        failed: Future[None] = Future()
        failed.set_exception(StoreUnavailable("ledger", "away"))
        return failed


def test_what_cannot_be_written_is_kept_and_written_once(tmp_path: Path) -> None:
    clock = SetClock(wall_s=NOW_S, monotonic_s=0.0)
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)
    ledger = Breaking(journal.tenants._writer, clock)
    hour_at = int(NOW_S) // HOUR_S * HOUR_S

    async def count() -> None:
        meter = UsageMeter(ledger, clock)
        meter.accepted("acme")
        ledger.is_away = True
        with pytest.raises(StoreUnavailable):
            await meter.flush()
        meter.accepted("acme")
        meter.refused("acme", "QUEUE_FULL", 3)
        clock.wall_s += HOUR_S
        meter.cached("acme", 7)
        ledger.is_away = False
        await meter.flush()
        await meter.flush()

    asyncio.run(count())
    rows = ledger.usage("acme", 0, NOW_S + 2 * HOUR_S).result()
    journal.close()

    assert rows == [
        UsageRow("acme", hour_at, "refused:QUEUE_FULL", 3.0),
        UsageRow("acme", hour_at, "requests", 2.0),
        UsageRow("acme", hour_at + HOUR_S, "cached_bytes", 7.0),
    ]


def test_counts_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_WAITING", 2)
    clock = SetClock(wall_s=NOW_S, monotonic_s=0.0)
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)

    async def count() -> None:
        meter = UsageMeter(journal.tenants, clock)
        for tenant in ("a", "b", "c", "a"):
            meter.accepted(tenant)
        await meter.flush()

    asyncio.run(count())
    amounts = [sum(row.amount for row in journal.tenants.usage(name, 0, 2 * NOW_S).result()) for name in "abc"]
    journal.close()

    assert amounts == [2.0, 1.0, 0.0]
