"""Let a computing thread wait for a call from another thread, or for a readable descriptor: data from a descriptor then
reaches it without a thread in between."""

import logging
import os
import select
import threading
import traceback
import weakref
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ThreadWait:
    """Block one thread in `wait`; the other methods may be called on any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Closed with the object, without a call of `close`.
        self._let_go = weakref.finalize(self, os.close, self._wakes)
        self._epoll.register(self._wakes, select.EPOLLIN)
        self._hearing: dict[int, Callable[[], None]] = {}
        self._held = threading.Lock()

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        with self._held:
            if self._let_go.alive:
                os.eventfd_write(self._wakes, 1)

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """Run a callback on the waiting thread whenever the descriptor is readable; it must read all available data."""
        with self._held:
            if self._let_go.alive:
                self._hearing[descriptor] = hear
                self._epoll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Stop listening to a descriptor; its callback may still be running. Call it before the descriptor is closed.
        Idempotent."""
        with self._held:
            if self._hearing.pop(descriptor, None) is not None and self._let_go.alive:
                self._epoll.unregister(descriptor)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once `wake` was called, a descriptor's callback ran, or `timeout_s` has passed."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            if descriptor == self._wakes:
                os.eventfd_read(self._wakes)
            else:
                self._hear(descriptor)

    def hear_now(self) -> None:
        """Run the callbacks of all readable descriptors, without a wait."""
        if self._hearing:
            self.wait(0.0)

    def close(self) -> None:
        """Stop listening to all descriptors; `wake` has no effect afterwards. Not while a thread waits. Idempotent."""
        with self._held:
            self._hearing.clear()
            if self._let_go.alive:
                self._epoll.close()
                self._let_go()

    def _hear(self, descriptor: int) -> None:
        hear = self._hearing.get(descriptor)
        if hear is None:  # `forget` was called before
            return
        try:
            hear()
        except Exception as error:
            # Unread data would wake the thread forever.
            self.forget(descriptor)
            logger.error(
                "hearing raised %s:\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            )
