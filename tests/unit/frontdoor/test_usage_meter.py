"""Count usage of tenants while the ledger is away, and write it afterwards."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.generation import FromNoise, GenerationSpec, Provenance, Route, Scheduler
from pentimento.domain.image_request import Completed, ImageFormat
from pentimento.domain.tenants import DAY_S, HOUR_S, UsagePeriod, UsageRow
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.tenant_ledger import TenantLedger
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


def test_unwritten_usage_is_kept_and_written_once(tmp_path: Path) -> None:
    clock = SetClock(wall_s=NOW_S, monotonic_s=0.0)
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", clock)
    ledger = Breaking(journal._writer, clock)
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


def delivered(width_px: int, height_px: int, steps_run: int, steps_saved: int, device_s: float) -> Completed:
    spec = GenerationSpec("a circle", "", "m", width_px, height_px, 50, 1.0, Scheduler.DDIM, 1)
    route = Route("r", FromNoise(), "m", "d")
    provenance = Provenance("r", spec, route, "d", "w", 1, 1, steps_run, steps_saved, "1", device_seconds=device_s)
    return Completed("r", b"", ImageFormat.PNG, width_px, height_px, provenance)


async def test_image_counts_pixel_steps_that_ran(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", SetClock(wall_s=NOW_S))
    meter = UsageMeter(journal.tenants, SetClock(wall_s=NOW_S))
    meter.delivered("acme", delivered(64, 32, 50, 0, 1.5))
    meter.delivered("acme", delivered(32, 32, 30, 20, 0.25))
    meter.accepted("other")
    meter.refused("other", "DRAINING")
    begin = int(NOW_S) // HOUR_S * HOUR_S

    used = await meter.periods("acme", begin, begin + 1, HOUR_S)
    other = await meter.periods("other", begin, begin + 1, HOUR_S)
    none = await meter.periods("acme", begin + 1, begin + HOUR_S, HOUR_S)
    journal.close()

    cost = 64 * 32 * 50 + 32 * 32 * 30
    assert used == (UsagePeriod(begin, image_count=2, cache_hit_count=1, painted_cost=cost, device_s=1.75),)
    assert other == (UsagePeriod(begin, 1, refused_counts={"DRAINING": 1}),)
    assert none == ()


@pytest.mark.parametrize("told", [math.nan, -1.0, 1e308])
async def test_missing_time_of_worker_does_not_block_counts(tmp_path: Path, told: float) -> None:
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", SetClock(wall_s=NOW_S))
    meter = UsageMeter(journal.tenants, SetClock(wall_s=NOW_S))
    meter.delivered("acme", delivered(32, 32, 10, 0, told))
    meter.delivered("acme", delivered(32, 32, 10, 0, 1.5))
    meter.accepted("other")
    begin = int(NOW_S) // HOUR_S * HOUR_S

    used = await meter.periods("acme", begin, begin + 1, HOUR_S)
    other = await meter.periods("other", begin, begin + 1, HOUR_S)
    journal.close()

    assert (used[0].image_count, used[0].device_s) == (2, 1.5)
    assert other == (UsagePeriod(begin, 1),)


class Forgetful(TenantLedger):
    """Record the tenants to be forgotten."""

    def __init__(self, failures: int = 0) -> None:
        self.before: list[float] = []
        self.failures = failures
        self.asked_count = 0

    def add_usage(self, rows: Sequence[UsageRow]) -> "Future[None]":
        answer: Future[None] = Future()
        self.asked_count += 1
        if self.asked_count <= self.failures:
            answer.set_exception(StoreUnavailable("ledger", "away"))
        else:
            answer.set_result(None)
        return answer

    def forget(self, usage_before: float) -> "Future[int]":
        answer: Future[int] = Future()
        answer.set_result(0)
        self.before.append(usage_before)
        return answer


async def test_usage_older_than_400_days_is_deleted_every_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = SetClock(wall_s=NOW_S, monotonic_s=50.0), list[float]()
    ledger = Forgetful()
    # Between two writes: a minute less than an hour, then that minute, then an hour.
    passing = iter([0.0, 3540.0, 60.0, 3600.0])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        try:
            clock.monotonic_s += next(passing)
        except StopIteration:
            raise asyncio.CancelledError from None

    monkeypatch.setattr(usage.asyncio, "sleep", sleep)

    with pytest.raises(asyncio.CancelledError):
        await UsageMeter(ledger, clock).run_forever()

    assert slept == [5.0] * 5
    assert ledger.before == [NOW_S - 400 * DAY_S] * 3


async def test_clock_that_jumps_ahead_deletes_nothing_until_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deleted usage and expired keys would not come back."""
    clock = SetClock(wall_s=NOW_S, monotonic_s=50.0)
    ledger = Forgetful()
    meter = UsageMeter(ledger, clock)
    clock.wall_s += 40 * DAY_S
    seen: list[int] = []

    async def sleep(seconds: float) -> None:
        seen.append(len(ledger.before))
        if len(seen) == 4:
            raise asyncio.CancelledError
        clock.wall_s += 1800.0
        clock.monotonic_s += 1800.0

    monkeypatch.setattr(usage.asyncio, "sleep", sleep)

    with pytest.raises(asyncio.CancelledError):
        await meter.run_forever()

    assert seen == [0, 0, 0, 1]


async def test_absent_ledger_is_logged_once_per_absence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SetClock(wall_s=NOW_S)
    ledger, rounds = Forgetful(failures=2), iter(range(4))
    meter = UsageMeter(ledger, clock)

    async def sleep(seconds: float) -> None:
        number = next(rounds, None)
        if number is None:
            raise asyncio.CancelledError
        if number == 3:
            ledger.failures, ledger.asked_count = 1, 0
        meter.accepted("acme")

    monkeypatch.setattr(usage.asyncio, "sleep", sleep)

    with pytest.raises(asyncio.CancelledError):
        await meter.run_forever()

    warned = [record.message for record in caplog.records if record.name == usage.__name__]
    assert warned == ["usage cannot be written; retrying later"] * 2


class Slow(TenantLedger):
    """Write the counts after the test permits it."""

    def __init__(self) -> None:
        self.given: list[list[float]] = []
        self.writes: asyncio.Queue[Future[None]] = asyncio.Queue()

    def add_usage(self, rows: Sequence[UsageRow]) -> "Future[None]":
        write: Future[None] = Future()
        write.set_running_or_notify_cancel()
        self.given.append([row.amount for row in rows])
        self.writes.put_nowait(write)
        return write


async def write_of_a_cancelled_flush(meter: UsageMeter, ledger: Slow) -> "Future[None]":
    """Cancel a flush while the ledger writes, as an abandoned call or a stopping process does."""
    flushing = asyncio.create_task(meter.flush())
    write = await ledger.writes.get()
    flushing.cancel()
    await asyncio.wait([flushing])
    return write


@pytest.mark.parametrize("error", [None, StoreUnavailable("ledger", "away")])
async def test_counts_of_a_cancelled_flush_are_written_once(error: StoreUnavailable | None) -> None:
    ledger = Slow()
    meter = UsageMeter(ledger, SetClock(wall_s=NOW_S))
    meter.accepted("acme")
    write = await write_of_a_cancelled_flush(meter, ledger)

    if error is None:
        write.set_result(None)
    else:
        write.set_exception(error)
    again = asyncio.create_task(meter.flush())
    if error is not None:
        (await ledger.writes.get()).set_result(None)
    await asyncio.wait_for(again, 60.0)

    assert ledger.given == ([[1.0]] if error is None else [[1.0], [1.0]])
