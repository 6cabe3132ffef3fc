"""Dynamic batching on the one thread that owns the model.

An item that finds the thread idle runs at once. What arrives while a batch runs becomes the next batch; only if that
batch would be smaller than the one before, which is what callers in a loop look like, it waits up to `max_wait_s` for
the rest of them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.reasons import Reason
from services.embedder.metrics import BATCH_SECONDS, BATCHED_ITEMS, BATCHES, QUEUE_SECONDS

# Computes a batch: one vector (float32 bytes) an item, in order.
Compute = Callable[[Sequence[Any]], Sequence[bytes]]


@dataclass(frozen=True)
class EmbeddingBatchLimits:
    """`aging_limit_s`: how long an item of a later lane may be overtaken by an earlier one."""

    max_batch_size: int = 16
    max_wait_s: float = 0.002
    queue_limit: int = 1024
    aging_limit_s: float = 0.1


@dataclass(frozen=True)
class _Item:
    value: Any
    arrived_s: float
    future: "Future[bytes]" = field(default_factory=Future)


class ModelThread:
    """Runs batches of one kind at a time. `lanes` maps kinds to computations, the urgent ones first.

    `inside` is entered on the thread before the first batch (torch's inference_mode is per thread).
    """

    def __init__(
        self,
        lanes: Mapping[str, Compute],
        limits: EmbeddingBatchLimits,
        inside: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._lanes = dict(lanes)
        self._limits = limits
        self._queues: dict[str, deque[_Item]] = {kind: deque() for kind in lanes}
        self._last_size = dict.fromkeys(lanes, 1)
        self._arrival = threading.Condition()
        self._closed = False
        self.batch_count = 0
        self.item_count = 0
        self._thread = threading.Thread(target=self._run, args=(inside,), name="model", daemon=True)
        self._thread.start()

    def submit(self, kind: str, values: Sequence[Any]) -> "list[Future[bytes]]":
        """A vector each, later. ResourceExhausted when the queue is full; a future cancelled in time costs nothing."""
        now_s = time.monotonic()
        items = [_Item(value, now_s) for value in values]
        with self._arrival:
            if self._closed:
                raise Unavailable(Reason.DRAINING, "the embedder is stopping", retry_after_ms=500)
            if len(self._queues[kind]) + len(items) > self._limits.queue_limit:
                message = f"at most {self._limits.queue_limit} embeddings of a kind may wait"
                raise ResourceExhausted("QUEUE_FULL", message, retry_after_ms=100)
            self._queues[kind].extend(items)
            self._arrival.notify()
        return [item.future for item in items]

    def close(self) -> None:
        """Takes nothing more, finishes what waits, ends the thread."""
        with self._arrival:
            self._closed = True
            self._arrival.notify()
        self._thread.join()

    def _run(self, inside: Callable[[], AbstractContextManager[Any]]) -> None:
        with inside():
            while (batch := self._next_batch()) is not None:
                kind, items = batch
                self._compute(kind, [item for item in items if item.future.set_running_or_notify_cancel()])

    def _next_batch(self) -> tuple[str, list[_Item]] | None:
        """Blocks for work; None when closed and all is done."""
        with self._arrival:
            was_idle = not any(self._queues.values())
            while not any(self._queues.values()):
                if self._closed:
                    return None
                self._arrival.wait()
            kind = self._choose_lane()
            if not was_idle:
                self._wait_for_fuller_batch(kind)
            queue = self._queues[kind]
            size = min(len(queue), self._limits.max_batch_size)
            self._last_size[kind] = size
            return kind, [queue.popleft() for _ in range(size)]

    def _choose_lane(self) -> str:
        """The first lane with work, unless a later one has waited beyond its aging limit."""
        waiting = [kind for kind, queue in self._queues.items() if queue]
        late_s = time.monotonic() - self._limits.aging_limit_s
        late = [kind for kind in waiting if self._queues[kind][0].arrived_s < late_s]
        return min(late, key=lambda kind: self._queues[kind][0].arrived_s) if late else waiting[0]

    def _wait_for_fuller_batch(self, kind: str) -> None:
        queue = self._queues[kind]
        wanted = min(self._last_size[kind], self._limits.max_batch_size)
        end_s = queue[0].arrived_s + self._limits.max_wait_s
        while len(queue) < wanted and not self._closed and (left_s := end_s - time.monotonic()) > 0:
            self._arrival.wait(left_s)

    def _compute(self, kind: str, items: list[_Item]) -> None:
        if not items:
            return
        started_s = time.monotonic()
        for item in items:
            QUEUE_SECONDS.labels(kind).observe(started_s - item.arrived_s)
        try:
            results = list(zip(items, self._lanes[kind]([item.value for item in items]), strict=True))
        except Exception as error:  # the thread outlives whatever a batch does
            self._compute_apart(kind, items, error)
            return
        for item, vector in results:
            item.future.set_result(vector)
        self._count(kind, len(items), time.monotonic() - started_s)

    def _compute_apart(self, kind: str, items: list[_Item], error: Exception) -> None:
        """One bad item must not fail its batchmates: each gets a batch of its own."""
        if len(items) == 1:
            items[0].future.set_exception(error)
            return
        for item in items:
            self._compute(kind, [item])

    def _count(self, kind: str, size: int, seconds: float) -> None:
        self.batch_count += 1
        self.item_count += size
        BATCHES.labels(kind).inc()
        BATCHED_ITEMS.labels(kind).inc(size)
        BATCH_SECONDS.labels(kind).observe(seconds)
