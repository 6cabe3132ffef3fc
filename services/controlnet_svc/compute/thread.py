"""Compute steps of many streams on one thread: those of one ControlNet and size share a forward pass."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from pentimento.diffusion.controlnets import ControlNet, ControlStep, ResidualsSoFar
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.domain.errors import Internal, PentimentoError, Unavailable
from pentimento.domain.reasons import Reason
from services.controlnet_svc import metrics

T = TypeVar("T")
# Values that must be equal in one forward pass.
BatchOf = tuple[object, ...]


@dataclass(frozen=True)
class StreamStep:
    """Describe one step of one stream. `deliver` takes its residuals, scaled, on the compute thread, and its result
    settles the future. A step with `alone` shares its forward pass with no other step; steps of the same stream never
    share one, since the delay between them would change the rounding. `in_parts`: `deliver` is also called before the
    end, each time with all residuals so far."""

    stream: object
    network: ControlNet
    step: ControlStep
    deliver: Callable[[ControlResiduals], Any]
    alone: bool = False
    in_parts: bool = False

    @property
    def row_count(self) -> int:
        return self.step.inputs.latents.shape[0]

    @property
    def batch_of(self) -> BatchOf:
        """Return the batch key; steps with equal keys may share a forward pass."""
        parts = (self.step.inputs.latents, self.step.embedded, *self.step.inputs.conditioning.parts)
        shapes = tuple(None if part is None else tuple(part.shape[1:]) for part in parts)
        return (id(self), shapes) if self.alone else (id(self.network), shapes)


@dataclass(frozen=True)
class _Waiting:
    step: StreamStep
    arrived_s: float
    future: "Future[Any]" = field(default_factory=Future)


class ComputeThread:
    """Compute steps in arrival order, each with other steps of its batch key, up to `max_batch`."""

    def __init__(self, max_batch: int, busy: Callable[[float], None] = lambda seconds: None) -> None:
        self._max_batch = max_batch
        self._busy = busy
        self._waiting: deque[_Waiting] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        # Also waits for the steps of lines.
        self.waiting = ThreadWait()
        self._held = threading.Lock()
        self._closed = False
        self.step_count = 0
        self._thread = threading.Thread(target=self._run, name="controlnets", daemon=True)
        self._thread.start()

    def submit(self, step: StreamStep) -> "Future[Any]":
        """Queue a step, and return the future of `deliver`'s result; a future cancelled in time costs nothing. Raises
        Unavailable once it is closed."""
        waiting = _Waiting(step, time.monotonic())
        with self._held:
            self._check_open()
            self._waiting.append(waiting)
        self._wake()
        return waiting.future

    def call(self, act: Callable[[], T]) -> "Future[T]":
        """Run `act` on the thread, before waiting steps. Raises Unavailable once it is closed."""
        future: Future[T] = Future()
        with self._held:
            self._check_open()
            self._calls.append((act, future))
        self._wake()
        return future

    def close(self) -> None:
        """Accept no further work, finish the waiting steps, end the thread."""
        with self._held:
            self._closed = True
        self._wake()
        self._thread.join()
        self.waiting.close()

    def _wake(self) -> None:
        if threading.current_thread() is not self._thread:
            self.waiting.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(Reason.DRAINING, "the ControlNet service is stopping", retry_after_ms=500)

    def _run(self) -> None:
        with torch.inference_mode():
            while (work := self._next()) is not None:
                if isinstance(work, list):
                    self._compute([item for item in work if item.future.set_running_or_notify_cancel()])
                elif work[1].set_running_or_notify_cancel():
                    _settle(work[1], work[0])
                # Release the step's memory before waiting for the next one.
                del work

    def _next(self) -> "list[_Waiting] | tuple[Callable[[], Any], Future[Any]] | None":
        """Block for work; return None when closed and all is done."""
        # Steps that came by lines while it computed may share the next pass.
        self.waiting.hear_now()
        while (work := self._taken()) is None:
            if self._closed:
                return self._taken()
            self.waiting.wait()
        return work

    def _taken(self) -> "list[_Waiting] | tuple[Callable[[], Any], Future[Any]] | None":
        with self._held:
            if self._calls:
                return self._calls.popleft()
            if not self._waiting:
                return None
            key = self._waiting[0].step.batch_of
            firsts: dict[int, _Waiting] = {}
            for item in self._waiting:
                if item.step.batch_of == key:
                    firsts.setdefault(id(item.step.stream), item)
            batch = list(firsts.values())[: self._max_batch]
            taken = {id(item) for item in batch}
            self._waiting = deque(item for item in self._waiting if id(item) not in taken)
            return batch

    def _compute(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        began_s = time.monotonic()
        for item in batch:
            metrics.QUEUE_SECONDS.observe(began_s - item.arrived_s)
        try:
            parts = _forward([item.step for item in batch], partial(self._deliver_parts, batch))
        except Exception as error:  # the thread survives any error of a step
            self._compute_apart(batch, error)
            return
        for item, residuals in zip(batch, parts, strict=True):
            if not item.future.done():
                _settle(item.future, partial(item.step.deliver, residuals))
        self._count(len(batch), time.monotonic() - began_s)

    def _deliver_parts(self, batch: Sequence[_Waiting], so_far: Sequence[ControlResiduals]) -> None:
        for item, residuals in zip(batch, so_far, strict=True):
            if item.step.in_parts and not item.future.done():
                try:
                    item.step.deliver(residuals)
                except Exception as error:  # fails only this step
                    item.future.set_exception(_typed(error))

    def _compute_apart(self, batch: list[_Waiting], error: Exception) -> None:
        """Compute each step in a separate forward pass, so that one bad step does not fail the others."""
        batch = [item for item in batch if not item.future.done()]
        if len(batch) == 1:
            batch[0].future.set_exception(_typed(error))
            return
        for item in batch:
            self._compute([item])

    def _count(self, size: int, seconds: float) -> None:
        self.step_count += size
        metrics.STEPS.inc(size)
        metrics.BATCH.observe(size)
        metrics.STEP_SECONDS.observe(seconds)
        self._busy(seconds)


def _forward(steps: Sequence[StreamStep], tell: ResidualsSoFar) -> list[ControlResiduals]:
    return steps[0].network.residuals([one.step for one in steps], tell)


def _settle(future: "Future[Any]", act: Callable[[], Any]) -> None:
    try:
        result = act()
    except Exception as error:
        future.set_exception(_typed(error))
    else:
        future.set_result(result)


def _typed(error: Exception) -> PentimentoError:
    if isinstance(error, PentimentoError):
        return error
    return Internal("CONTROLNET_FAILED", f"the ControlNet failed ({type(error).__name__})")
