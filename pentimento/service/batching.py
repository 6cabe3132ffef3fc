"""Combine items of many calls into batches on the one thread that owns a model.

An item that finds the thread idle runs at once. Items that arrive while a batch runs become the next batch. Callers in
a loop often return within a moment: a batch that would be smaller than the one before waits for them, up to
`max_wait_s`.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.reasons import Reason

# Compute a batch: one result per item, in order.
Compute = Callable[[Sequence[Any]], Sequence[Any]]
# Receive the lane of a finished batch, the seconds that each item waited, and the seconds that the batch took.
OnBatch = Callable[[str, Sequence[float], float], None]


@dataclass(frozen=True)
class BatchingLimits:
    """Limit each lane: items in a batch, and items that wait. A batch waits `max_wait_s` at most for more items.

    `aging_limit_s`: seconds during which items of an earlier lane may overtake an item of a later one.
    """

    max_batch_size: int = 16
    max_wait_s: float = 0.002
    queue_limit: int = 1024
    aging_limit_s: float = 0.1


@dataclass(frozen=True)
class _Item:
    value: Any
    arrived_s: float
    future: "Future[Any]" = field(default_factory=Future)


class ModelThread:
    """Run batches of one lane at a time. `lanes` maps names to computations, the most urgent one first.

    The thread enters `inside` before its first batch: torch keeps its inference mode and number of threads per thread.
    """

    def __init__(
        self,
        lanes: Mapping[str, Compute],
        limits: BatchingLimits,
        inside: Callable[[], AbstractContextManager[Any]],
        on_batch: OnBatch,
    ) -> None:
        self._lanes = dict(lanes)
        self._limits = limits
        self._on_batch = on_batch
        self._queues: dict[str, deque[_Item]] = {lane: deque() for lane in lanes}
        self._last_size = dict.fromkeys(lanes, 1)
        self._arrival = threading.Condition()
        self._closed = False
        self.batch_count = 0
        self.item_count = 0
        self._thread = threading.Thread(target=self._run, args=(inside,), name="model", daemon=True)
        self._thread.start()

    async def run(self, lane: str, values: Sequence[Any]) -> list[Any]:
        """Return a result per value. Raises like `submit`, and passes on the computation's errors."""
        return await asyncio.gather(*map(asyncio.wrap_future, self.submit(lane, values)))

    def submit(self, lane: str, values: Sequence[Any]) -> "list[Future[Any]]":
        """Queue the values and return a future per value; one that is cancelled in time is not computed. Raises
        ResourceExhausted while the queue is full, Unavailable once closed."""
        now_s = time.monotonic()
        items = [_Item(value, now_s) for value in values]
        with self._arrival:
            if self._closed:
                raise Unavailable(Reason.DRAINING, "the model thread is stopping", retry_after_ms=500)
            if len(self._queues[lane]) + len(items) > self._limits.queue_limit:
                message = f"at most {self._limits.queue_limit} items of a kind may wait"
                raise ResourceExhausted("QUEUE_FULL", message, retry_after_ms=100)
            self._queues[lane].extend(items)
            self._arrival.notify()
        return [item.future for item in items]

    def close(self) -> None:
        """Accept no more items, finish the queued ones, and end the thread."""
        with self._arrival:
            self._closed = True
            self._arrival.notify()
        self._thread.join()

    def _run(self, inside: Callable[[], AbstractContextManager[Any]]) -> None:
        with inside():
            while (batch := self._next_batch()) is not None:
                lane, items = batch
                self._compute(lane, [item for item in items if item.future.set_running_or_notify_cancel()])

    def _next_batch(self) -> tuple[str, list[_Item]] | None:
        """Wait for work; return None once closed and finished."""
        with self._arrival:
            was_idle = not any(self._queues.values())
            while not any(self._queues.values()):
                if self._closed:
                    return None
                self._arrival.wait()
            lane = self._choose_lane()
            if not was_idle:
                self._wait_for_fuller_batch(lane)
            queue = self._queues[lane]
            size = min(len(queue), self._limits.max_batch_size)
            self._last_size[lane] = size
            return lane, [queue.popleft() for _ in range(size)]

    def _choose_lane(self) -> str:
        """Return the first lane with work, unless an item of a later one has waited beyond the aging limit."""
        waiting = [lane for lane, queue in self._queues.items() if queue]
        late_s = time.monotonic() - self._limits.aging_limit_s
        late = [lane for lane in waiting if self._queues[lane][0].arrived_s < late_s]
        return min(late, key=lambda lane: self._queues[lane][0].arrived_s) if late else waiting[0]

    def _wait_for_fuller_batch(self, lane: str) -> None:
        queue = self._queues[lane]
        wanted = min(self._last_size[lane], self._limits.max_batch_size)
        end_s = queue[0].arrived_s + self._limits.max_wait_s
        while len(queue) < wanted and not self._closed and (left_s := end_s - time.monotonic()) > 0:
            self._arrival.wait(left_s)

    def _compute(self, lane: str, items: list[_Item]) -> None:
        if not items:
            return
        began_s = time.monotonic()
        try:
            results = list(zip(items, self._lanes[lane]([item.value for item in items]), strict=True))
        except Exception as error:  # the thread outlives every error of a batch
            self._compute_apart(lane, items, error)
            return
        self.batch_count += 1
        self.item_count += len(items)
        self._on_batch(lane, [began_s - item.arrived_s for item in items], time.monotonic() - began_s)
        for item, result in results:
            item.future.set_result(result)

    def _compute_apart(self, lane: str, items: list[_Item], error: Exception) -> None:
        """Compute each item in its own batch, so that a bad item fails without the others."""
        if len(items) == 1:
            items[0].future.set_exception(error)
            return
        for item in items:
            self._compute(lane, [item])


class TakenWork:
    """Count unanswered work of one event loop, so that a closing service finishes it and accepts no more."""

    def __init__(self, name: str) -> None:
        """Make a counter for the service of that name."""
        self._name = name
        self._closed = False
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self.count = 0

    @contextmanager
    def taking(self, count: int = 1) -> Iterator[None]:
        """Count work until it is answered. Raises Unavailable DRAINING once closed."""
        if self._closed:
            raise Unavailable(Reason.DRAINING, f"the {self._name} is stopping", retry_after_ms=500)
        self.count += count
        self._all_answered.clear()
        try:
            yield
        finally:
            self.count -= count
            if not self.count:
                self._all_answered.set()

    async def close(self) -> None:
        """Accept no more work, and wait until all is answered."""
        self._closed = True
        await self._all_answered.wait()
