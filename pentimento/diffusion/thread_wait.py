"""What a computing thread waits in: for a call from another thread, or for a descriptor to become readable. What comes
by a descriptor then reaches it without a thread between."""

import logging
import os
import select
import threading
import traceback
import weakref
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ThreadWait:
    """One thread waits; the rest may be called on any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Nobody has to close it.
        self._let_go = weakref.finalize(self, os.close, self._wakes)
        self._epoll.register(self._wakes, select.EPOLLIN)
        self._hearing: dict[int, Callable[[], None]] = {}
        self._held = threading.Lock()

    def wake(self) -> None:
        """End the wait at hand, or else the next one."""
        with self._held:
            if self._let_go.alive:
                os.eventfd_write(self._wakes, 1)

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """From now on call `hear` on the waiting thread when the descriptor is readable; it is to read all there is."""
        with self._held:
            if self._let_go.alive:
                self._hearing[descriptor] = hear
                self._epoll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Listen to it no longer; a call of `hear` may be under way. To be called before it is closed. Harmless
        twice."""
        with self._held:
            if self._hearing.pop(descriptor, None) is not None and self._let_go.alive:
                self._epoll.unregister(descriptor)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once somebody woke this thread, something was heard, or so much time has passed."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            if descriptor == self._wakes:
                os.eventfd_read(self._wakes)
            else:
                self._hear(descriptor)

    def hear_now(self) -> None:
        """Hear what has come, without a wait."""
        if self._hearing:
            self.wait(0.0)

    def close(self) -> None:
        """Listen to nothing any more; nobody is woken from here on. Not while a thread waits. Harmless twice."""
        with self._held:
            self._hearing.clear()
            if self._let_go.alive:
                self._epoll.close()
                self._let_go()

    def _hear(self, descriptor: int) -> None:
        hear = self._hearing.get(descriptor)
        if hear is None:  # it was forgotten meanwhile
            return
        try:
            hear()
        except Exception as error:
            # What was not read would wake the thread for ever.
            self.forget(descriptor)
            logger.error(
                "hearing raised %s:\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            )
