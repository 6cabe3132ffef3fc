"""Detect a silent peer, counting time only while this process runs itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOKS = 4


class SilenceWatch:
    """Call `on_silence` after `silence_s` without `heard`, or at most a quarter of it later.

    The watch checks four times in that time, each check scheduled by the one before. A process that was stopped or had
    no processor makes only one check for the whole pause, and reads the messages in its sockets before the next.
    """

    def __init__(self, silence_s: float, on_silence: Callable[[], None]) -> None:
        self._interval_s = silence_s / LOOKS
        self._on_silence = on_silence
        self._looks_left = LOOKS
        self._timer = self._look_later()

    def heard(self) -> None:
        """Restart the wait, as the peer sent a message."""
        self._looks_left = LOOKS

    def close(self) -> None:
        """Stop watching."""
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
    """Raise TimeoutError in the block after `silence_s` without a call of `heard`."""
    async with asyncio.timeout(None) as limit:
        watch = SilenceWatch(silence_s, lambda: limit.reschedule(asyncio.get_running_loop().time()))
        try:
            yield watch
        finally:
            watch.close()
