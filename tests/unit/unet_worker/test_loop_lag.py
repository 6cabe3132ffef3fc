"""A loop that is held up says by how much."""

import asyncio
import time

import pytest

from services.unet_worker import loop_lag
from services.unet_worker.loop_lag import LoopLagProbe


async def test_what_holds_the_loop_up_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 0.0)
    lags: asyncio.Queue[float] = asyncio.Queue()
    probe = LoopLagProbe(lags.put_nowait)
    probe.start()
    await lags.get()
    while not lags.empty():
        lags.get_nowait()

    time.sleep(0.05)  # noqa: ASYNC251 (holding the loop up is the point)

    assert max([await lags.get() for _ in range(2)]) >= 0.04
    probe.close()


async def test_a_closed_probe_observes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 0.0)
    lags: list[float] = []
    probe = LoopLagProbe(lags.append)
    probe.start()
    probe.close()
    for _ in range(5):
        await asyncio.sleep(0)

    assert lags == []
