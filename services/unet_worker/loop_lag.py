"""Measure how late the event loop runs due callbacks: the engine's thread shares the interpreter with it, and must not
hold it."""

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.05


class LoopLagProbe:
    """Observe the lag in seconds, once every INTERVAL_S, until it is closed; on the loop that it measures."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._probe(), name="loop-lag")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._observe(max(loop.time() - due, 0.0))
