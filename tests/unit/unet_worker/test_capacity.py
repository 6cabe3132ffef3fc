"""The credit feed, the busy share and the lag of the event loop."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import HeldComponent, Tier, TierSpeed
from pentimento.domain.errors import Aborted
from pentimento.domain.execution import WorkerCredits
from pentimento.service import credits
from pentimento.service import credits as credits_module
from pentimento.service.credits import BusyMeter, CreditNews, LoopLagProbe
from services.unet_worker.worker import credit_messages
from tests.unit.unet_worker.orders import HELD


class Feed:
    def __init__(self) -> None:
        self.credit_count = 2
        self.news = CreditNews()

    def watch(self, check: Callable[[], None] = lambda: None) -> AsyncGenerator[WorkerCredits, None]:
        return credit_messages(self.news, lambda: WorkerCredits("worker", HELD, self.credit_count), check)


async def test_change_reaches_every_watcher() -> None:
    made = Feed()
    watchers = [made.watch(), made.watch()]
    for watcher in watchers:
        assert (await anext(watcher)).credit_count == 2

    made.credit_count = 0
    made.news.changed()

    assert [(await anext(watcher)).credit_count for watcher in watchers] == [0, 0]


async def test_unchanged_state_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credits, "HEARTBEAT_S", 0.0)
    watcher = Feed().watch()

    assert await anext(watcher) == await anext(watcher)


async def test_adapters_are_sent_once_and_on_change() -> None:
    neon = Adapter("neon", AdapterKind.LORA, "sha256:n", "sd")
    known: tuple[Adapter, ...] = (neon,)
    news = CreditNews()
    watcher, later = (
        credit_messages(news, lambda: WorkerCredits("worker", HELD, 1, known_adapters=known), lambda: None)
        for _ in range(2)
    )

    async def told(by: AsyncGenerator[WorkerCredits, None]) -> tuple[Adapter, ...] | None:
        news.changed()
        return (await anext(by)).known_adapters

    assert [await told(watcher), await told(watcher)] == [(neon,), None]
    known = ()
    assert [await told(watcher), await told(watcher)] == [(), None]
    known = (neon,)
    assert [await told(watcher), await told(later)] == [(neon,), (neon,)]


async def test_components_are_sent_whole_once_and_then_as_changes() -> None:
    neon, ink = (HeldComponent(f"sha256:{name}", Tier.DISK, 10) for name in ("neon", "ink"))
    held, speeds = [neon], (TierSpeed(Tier.DISK, 2.0),)
    news = CreditNews()

    def snapshot() -> WorkerCredits:
        changes = tuple(held)
        return WorkerCredits("w", HELD, 1, component_changes=changes, all_components=True, tier_speeds=speeds)

    watcher = credit_messages(news, snapshot, lambda: None)

    async def sent() -> tuple[tuple[HeldComponent, ...], bool, tuple[TierSpeed, ...]]:
        news.changed()
        one = await anext(watcher)
        return one.component_changes, one.all_components, one.tier_speeds

    assert await sent() == ((neon,), True, speeds)
    assert await sent() == ((), False, ())
    held.append(ink)
    assert await sent() == ((ink,), False, ())
    held[:] = [replace(ink, tier=Tier.HOST)]
    speeds = (TierSpeed(Tier.DISK, 3.0),)
    assert await sent() == ((replace(ink, tier=Tier.HOST), replace(neon, tier=Tier.STORE)), False, speeds)


async def test_changes_of_other_frontdoors_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credits, "HEARTBEAT_S", 3600.0)
    made, looks = Feed(), 0

    def look() -> None:
        nonlocal looks
        looks += 1

    watcher = made.watch(look)
    assert (await anext(watcher)).credit_count == 2
    following = asyncio.ensure_future(anext(watcher))
    while looks < 4:
        made.news.changed()
        await asyncio.sleep(0)
    assert not following.done()
    made.credit_count = 1
    made.news.changed()
    assert (await following).credit_count == 1


async def test_failed_check_ends_the_stream() -> None:
    stale = False

    def check() -> None:
        if stale:
            raise Aborted("STALE_EPOCH", "a newer epoch")

    made = Feed()
    watcher = made.watch(check)
    await anext(watcher)
    stale = True
    made.news.changed()

    with pytest.raises(Aborted):
        await anext(watcher)


async def test_departed_watcher_is_forgotten() -> None:
    made = Feed()
    watcher = made.watch()
    await anext(watcher)
    waiting = asyncio.ensure_future(anext(watcher))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert made.news._watchers == set()


def test_busy_share_covers_time_since_last_call() -> None:
    now = [0.0]
    meter = BusyMeter(lambda: now[0])
    meter.add(1.0)
    now[0] = 4.0

    assert meter.share() == 0.25
    now[0] = 8.0
    assert meter.share() == 0.0
    assert meter.share() == 0.0


async def test_blocked_loop_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credits_module, "LAG_INTERVAL_S", 0.0)
    lags: asyncio.Queue[float] = asyncio.Queue()
    probe = LoopLagProbe(lags.put_nowait)
    probe.start()
    await lags.get()
    while not lags.empty():
        lags.get_nowait()

    time.sleep(0.05)  # noqa: ASYNC251 (holding the loop up is the point)

    assert max([await lags.get() for _ in range(2)]) >= 0.04
    probe.close()


async def test_closed_probe_observes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credits_module, "LAG_INTERVAL_S", 0.0)
    lags: list[float] = []
    probe = LoopLagProbe(lags.append)
    probe.start()
    probe.close()
    for _ in range(5):
        await asyncio.sleep(0)

    assert lags == []
