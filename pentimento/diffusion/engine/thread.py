"""The engine's thread: it alone owns the model, and takes steps for as long as there are any to take."""

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from pentimento.diffusion.engine.denoiser import Denoiser, EagerDenoiser
from pentimento.diffusion.engine.faults import as_typed
from pentimento.diffusion.engine.limits import BatchLimits
from pentimento.diffusion.engine.listening import EngineObserver, PaintingListener, PaintingTicket, SilentObserver
from pentimento.diffusion.engine.loop import StepLoop
from pentimento.diffusion.engine.settings import EngineSettings
from pentimento.diffusion.families.model import BatchKey, DiffusionModel, batch_key
from pentimento.diffusion.painting import PaintingRequest
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.domain.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

# More than the kernel takes is no time to wait.
MAX_WAIT_S = 3600.0


class StepEngine:
    """The loop on a thread of its own, which takes requests from any thread. `denoiser` is the forward pass where it is
    not the model's own."""

    def __init__(
        self,
        model: DiffusionModel,
        settings: EngineSettings,
        observer: EngineObserver | None = None,
        denoiser: Denoiser | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = settings.threads
        self._monotonic = monotonic
        self.limits = BatchLimits(settings.max_batch, None, monotonic)
        self._loop = StepLoop(
            model, denoiser or EagerDenoiser(model), self.limits, settings, observer or SilentObserver(), monotonic
        )
        self._calls: deque[Callable[[], None]] = deque()
        # Also of descriptors by which its pictures hear from elsewhere.
        self.waiting = ThreadWait()
        self._held = threading.Lock()
        self._idle_work: Callable[[Callable[[], bool]], bool] | None = None
        self._news = self._closing = False
        self._thread = threading.Thread(target=self._run, name="step-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: PaintingRequest, listener: PaintingListener) -> PaintingTicket:
        """Queue a request; its listener is told the rest. Raises InvalidArgument when it does not fit the memory
        budget, Unavailable once the engine is closed."""
        self.limits.check(batch_key(request.spec))
        ticket = PaintingTicket(request, listener, self._monotonic(), self.wake)
        with self._held:
            if self._closing:
                raise Unavailable("ENGINE_CLOSED", "the engine has stopped")
            self._loop.submit(ticket)
        self.wake()
        return ticket

    def call(self, act: Callable[[], T]) -> "Future[T]":
        """Run `act` on the engine's thread between two steps, unless its future is cancelled before. Raises Unavailable
        once the engine is closed."""
        future: Future[T] = Future()
        with self._held:
            if self._closing:
                raise Unavailable("ENGINE_CLOSED", "the engine has stopped")
            self._calls.append(lambda: _settle(future, act))
        self.wake()
        return future

    def work_when_idle(self, work: Callable[[Callable[[], bool]], bool]) -> None:
        """While nobody is here, calls `work(wanted)` on the engine's thread, and again after each piece of news, until
        it returns False. It is to return soon once `wanted()`: whoever came waits for it."""
        self._idle_work = work
        self.wake()

    def wake(self) -> None:
        """Wake the engine: a request, a stop or late residuals have come."""
        self._news = True
        self.waiting.wake()

    def pairing_pays(self, size: BatchKey) -> bool:
        """Return whether guided pictures of that size gain by a peer, as far as that is known."""
        return self._loop.pairs.pays(size)

    @property
    def waiting_count(self) -> int:
        """Requests that have not begun."""
        return self._loop.waiting_count

    @property
    def running_count(self) -> int:
        """Requests that have begun."""
        return self._loop.running_count

    def close(self) -> None:
        """Stop after the step at hand; what is left fails with Unavailable."""
        with self._held:
            self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.waiting.close()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP keeps the number per thread
        with torch.inference_mode():
            while not self._closing:
                self._run_calls()
                if self._tick():
                    self.waiting.hear_now()
                else:
                    self._work_while_idle()
                    self._wait_for_news()
        self._run_calls()
        self._loop.fail_all(Unavailable("ENGINE_CLOSED", "the worker stopped before the image was done"))
        self._loop.restore_weights()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _tick(self) -> bool:
        """Tick once. What the loop does not expect ends the requests that are here, never the thread."""
        try:
            return self._loop.tick()
        except Exception as error:
            # Where, but not the message: libraries quote their input.
            logger.error("the step loop failed:\n%s", "".join(traceback.format_tb(error.__traceback__)))
            self._loop.fail_all(as_typed(error))
            return True

    def _work_while_idle(self) -> None:
        work = self._idle_work
        if work is None or self._wanted() or not self._loop.idle:
            return
        try:
            goes_on = work(self._wanted)
        except Exception as error:
            logger.error("work between images failed:\n%s", "".join(traceback.format_tb(error.__traceback__)))
            goes_on = False
        if not goes_on:
            self._idle_work = None

    def _wanted(self) -> bool:
        return self._news or self._closing

    def _wait_for_news(self) -> None:
        wanted = self._wanted()
        # Before it waits: what comes from here on ends the wait.
        self._news = False
        self.waiting.wait(0.0 if wanted else self._until_deadline())

    def _until_deadline(self) -> float | None:
        """Seconds; None where nothing is due."""
        deadline = self._loop.next_deadline()
        return None if deadline is None else min(max(deadline - self._monotonic(), 0.0), MAX_WAIT_S)


def _settle(future: "Future[T]", act: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():  # whoever waited for it has left
        return
    try:
        future.set_result(act())
    except Exception as error:
        future.set_exception(error)
