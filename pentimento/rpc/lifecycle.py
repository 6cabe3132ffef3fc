"""Handle the signals of a process, and run work that a signal may interrupt."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

STOPS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handle SIGTERM and SIGINT in a context: the first asks, the second insists, a third kills the process.

    SIGHUP calls `on_hangup`.
    """

    def __init__(self, on_hangup: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self._on_hangup = on_hangup
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        for number in STOPS:
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        for number in (*STOPS, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _on_stop(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
            for number in STOPS:
                # The event loop itself may hang: from here on the kernel acts by itself.
                self._loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
        self.asked.set()


async def completes(work: Callable[[], Awaitable[None]], interrupt: asyncio.Event) -> bool:
    """Run `work` until it is done (True; raises its errors) or the event interrupts and cancels it (False)."""
    working = asyncio.ensure_future(work())
    interrupted = asyncio.ensure_future(interrupt.wait())
    try:
        await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        interrupted.cancel()
        working.cancel()
        await asyncio.gather(working, interrupted, return_exceptions=True)
