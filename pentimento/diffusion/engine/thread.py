"""Run the engine's thread, the only owner of the model: it takes steps while any request is ready."""

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine.denoiser import Denoiser
from pentimento.diffusion.engine.job import DenoisingListener, EngineJob, EngineObserver
from pentimento.diffusion.engine.loop import EngineSettings, StepLoop
from pentimento.diffusion.engine.probe import BatchLimits, as_typed
from pentimento.diffusion.families.model import BatchKey, DiffusionModel
from pentimento.diffusion.thread_wait import ThreadWait
from pentimento.domain.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds; the kernel rejects much longer waits.
MAX_WAIT_S = 3600.0


class StepEngine:
    """Run the loop on its own thread and take requests from any thread. `denoiser` replaces the model's eager forward
    pass."""

    def __init__(
        self,
        model: DiffusionModel,
        settings: EngineSettings,
        observer: EngineObserver | None = None,
        denoiser: Denoiser | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._threads = settings.threads
        self._monotonic = monotonic
        self.limits = BatchLimits(settings.max_batch, None, monotonic)
        self._loop = StepLoop(
            model, denoiser or Denoiser(model), self.limits, settings, observer or EngineObserver(), monotonic
        )
        self._calls: deque[Callable[[], None]] = deque()
        # Also waits for descriptors that bring residuals or halves from other processes.
        self.waiting = ThreadWait()
        self._held = threading.Lock()
        self._idle_work: Callable[[Callable[[], bool]], bool] | None = None
        self._news = self._closing = False
        self._thread = threading.Thread(target=self._run, name="step-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: DenoisingRequest, listener: DenoisingListener) -> EngineJob:
        """Queue a request, and return the handle that stops it; its listener receives the events. Raises
        InvalidArgument if it does not fit the memory budget, Unavailable once the engine is closed."""
        self.limits.check(self._model.info.batch_key(request.spec))
        with self._held:
            if self._closing:
                raise Unavailable("ENGINE_CLOSED", "the engine has stopped")
            job = self._loop.submit(request, listener, self.wake)
        self.wake()
        return job

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
        """Call `work(wanted)` on the engine's thread while there is no request, and again after each wake-up, until it
        returns False. It must return soon once `wanted()` is true: a new request waits for it."""
        self._idle_work = work
        self.wake()

    def wake(self) -> None:
        """Wake the engine: a request, a stop or late residuals have arrived."""
        self._news = True
        self.waiting.wake()

    def pairing_pays(self, size: BatchKey) -> bool:
        """Return whether a peer speeds up guided images of that size, by the steps measured so far."""
        return self._loop.pairs.pays(size)

    @property
    def waiting_count(self) -> int:
        """Return the number of requests that have not begun."""
        return self._loop.waiting_count

    @property
    def running_count(self) -> int:
        """Return the number of requests that have begun."""
        return self._loop.running_count

    def close(self) -> None:
        """Stop after the current step; unfinished requests fail with Unavailable."""
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
        self._loop.release()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _tick(self) -> bool:
        """Tick once. An unexpected error ends all current requests, never the thread."""
        try:
            return self._loop.tick()
        except Exception as error:
            # The traceback without the message: libraries quote their input.
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
        # Cleared before the wait: later news ends it.
        self._news = False
        self.waiting.wait(0.0 if wanted else self._until_deadline())

    def _until_deadline(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        deadline = self._loop.next_deadline()
        return None if deadline is None else min(max(deadline - self._monotonic(), 0.0), MAX_WAIT_S)


def _settle(future: "Future[T]", act: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():  # the caller no longer waits
        return
    try:
        future.set_result(act())
    except Exception as error:
        future.set_exception(error)
