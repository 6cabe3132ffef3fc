"""How long somebody has said nothing, counted only while this process runs itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOKS = 4


class SilenceWatch:
    """Calls `on_silence` once nothing was heard for `silence_s`, and at most a quarter of it more.

    It looks four times in that time, and each look waits for the one before. A process that was stopped for a while,
    or had no processor, has one look for all of it: what was said meanwhile lies in its sockets, and is read first.
    """

    def __init__(self, silence_s: float, on_silence: Callable[[], None]) -> None:
        self._interval_s = silence_s / LOOKS
        self._on_silence = on_silence
        self._looks_left = LOOKS
        self._timer = self._look_later()

    def heard(self) -> None:
        """Begin anew: something was said."""
        self._looks_left = LOOKS

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()

    def _look_later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        if self._looks_left == 0:
            self._on_silence()
            return
        self._looks_left -= 1
        self._timer = self._look_later()


@asynccontextmanager
async def heard_within(silence_s: float) -> AsyncIterator[SilenceWatch]:
    """Raise TimeoutError once `heard` was not called for so long in the block."""
    async with asyncio.timeout(None) as limit:
        watch = SilenceWatch(silence_s, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        try:
            yield watch
        finally:
            watch.close()
