"""Hold the worker's attempts: running ones, orphans, and finished ones that a frontdoor may still fetch.

Only a cancel or the deadline stops an attempt. A broken stream leaves an orphan, which continues for a while so that
a frontdoor (of a newer epoch, if the first one died) can attach to it. Unfetched results stay for the same time.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.errors import (
    Aborted,
    Cancelled,
    FailedPrecondition,
    Internal,
    NotFound,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.execution import ExecuteEvent, PlaceYielded, RunningAttempt, Started, StepProgress
from pentimento.domain.generation import Attempt
from pentimento.domain.reasons import Reason
from pentimento.rpc import spawn_detached
from services.unet_worker import metrics
from services.unet_worker.attempts.frontdoors import FairCredits, KnownFrontdoors, remember
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.attempts.validation import check_asked_steps

logger = logging.getLogger(__name__)

Runner = Callable[[ExecuteOrder, Callable[[ExecuteEvent], None]], Awaitable[AttemptOutcome]]
AttemptKey = tuple[str, int]
StreamEvent = Started | StepProgress | PlaceYielded | AttemptOutcome

# Finished attempts that stay for late readers; the oldest are removed first.
KEPT_RESULTS = 64


class HeldAttempt:
    """Hold one attempt and its unread events: progress is overwritten, start and end are not."""

    def __init__(self, order: ExecuteOrder) -> None:
        # Until it has ended: results are held longer than the request's images.
        self.order: ExecuteOrder | None = order
        self.attempt = attempt = order.attempt
        self.reader_epoch = attempt.frontdoor_epoch
        self.task: asyncio.Task[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.outcome: AttemptOutcome | PentimentoError | None = None
        self.step, self.step_count = 0, 0
        self.yielded = False
        self._started: Started | None = None
        self._progress: StepProgress | None = None
        self._news = asyncio.Event()
        self._reader_count = 0
        self._reader: int | None = None

    @property
    def key(self) -> AttemptKey:
        return (self.attempt.request_id, self.attempt.fencing_token)

    @property
    def orphaned(self) -> bool:
        return self._reader is None

    def describe(self) -> RunningAttempt:
        return RunningAttempt(*self.key, self.step, self.step_count, self.orphaned)

    def hear(self, event: ExecuteEvent) -> None:
        """Record the runner's events: start and yielding once, the latest progress. A preview stays until it is
        read."""
        match event:
            case Started():
                self._started, self.step, self.step_count = event, event.first_step, event.step_count
            case StepProgress():
                unread = self._progress.preview if self._progress else b""
                self.step = max(event.step, self.step)
                self._progress = StepProgress(self.step, event.step_count, event.preview or unread)
            case PlaceYielded():
                self.yielded = True
        self._news.set()

    def settle(self, outcome: AttemptOutcome | PentimentoError) -> None:
        """Record the outcome; only the first one counts."""
        if self.outcome is None:
            self.outcome, self.order = outcome, None
            self._news.set()

    async def read(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield events from now on, then the outcome, or raise its error. A later reader ends this one with Aborted."""
        self._reader_count += 1
        self._reader = me = self._reader_count
        self._news.set()
        started_told = yielding_told = False
        try:
            while True:
                if self._reader != me:
                    raise Aborted(Reason.SUPERSEDED, "another stream of this attempt was opened")
                if self._started is not None and not started_told:
                    started_told = True
                    yield self._started
                elif self.yielded and not yielding_told:
                    yielding_told = True
                    yield PlaceYielded()
                elif self._progress is not None:
                    progress, self._progress = self._progress, None
                    yield progress
                elif isinstance(self.outcome, PentimentoError):
                    raise self.outcome
                elif self.outcome is not None:
                    yield self.outcome
                    return
                else:
                    self._news.clear()
                    await self._news.wait()
        finally:
            if self._reader == me:
                self._reader = None


class AttemptBook:
    """Admit, hold and forget attempts; on the event loop only. `capacity` returns the attempts that a frontdoor may
    hold; `changed` is called when one arrives, ends or is removed."""

    def __init__(
        self,
        runner: Runner,
        capacity: Callable[[str], int],
        orphan_s: float,
        changed: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._runner = runner
        self._capacity = capacity
        self._orphan_s = orphan_s
        self._changed = changed
        self.credits = FairCredits(changed)
        self._held: OrderedDict[AttemptKey, HeldAttempt] = OrderedDict()
        self._cancelled_early: OrderedDict[AttemptKey, None] = OrderedDict()
        self._newest_tokens: OrderedDict[str, int] = OrderedDict()
        self._frontdoors = KnownFrontdoors(clock or SystemClock())
        self._turn = asyncio.Event()
        self.draining = False
        self.completed_count = 0
        self.failed_count = 0

    def running(self) -> list[HeldAttempt]:
        return [held for held in self._held.values() if held.outcome is None]

    def held_counts(self) -> Counter[str]:
        """Return the running attempts of each frontdoor, without attempts that have yielded their place."""
        return Counter(held.attempt.frontdoor_id for held in self.running() if not held.yielded)

    def meet_frontdoor(self, frontdoor_id: str, epoch: int, journal_id: str = "") -> None:
        """Record a frontdoor's epoch. Raises Aborted if a newer epoch of that frontdoor has called: it owns the credits
        and attempts now; InvalidArgument for an epoch that is too far in the future."""
        if self._frontdoors.meet(frontdoor_id, epoch, journal_id):
            self._note_change()

    def execute(self, order: ExecuteOrder) -> AsyncGenerator[StreamEvent, None]:
        """Start the attempt, and return its stream, which ends with its outcome. Raises Aborted, Cancelled,
        FailedPrecondition, ResourceExhausted or Unavailable if it is rejected. The caller closes the stream."""
        return self._follow(self._admit(order))

    def attach(
        self, request_id: str, fencing_token: int, frontdoor_id: str, frontdoor_epoch: int, journal_id: str = ""
    ) -> AsyncGenerator[StreamEvent, None]:
        """Continue to read an attempt. Raises NotFound if it is not held, Aborted for a frontdoor of an older epoch."""
        self.meet_frontdoor(frontdoor_id, frontdoor_epoch, journal_id)
        held = self._held.get((request_id, fencing_token))
        if held is None:
            raise NotFound(Reason.ATTEMPT_GONE, "this worker does not hold that attempt")
        if frontdoor_epoch < held.reader_epoch:
            raise Aborted(Reason.STALE_EPOCH, f"epoch {held.reader_epoch} reads this attempt, got {frontdoor_epoch}")
        held.reader_epoch = frontdoor_epoch
        return self._follow(held)

    def cancel(self, request_id: str, fencing_token: int) -> bool:
        """Return whether the attempt was queued or running. Unknown ones are remembered: Execute may come later."""
        key = (request_id, fencing_token)
        held = self._held.get(key)
        if held is None:
            remember(self._cancelled_early, key, None)
            return False
        return self._stop(held, Cancelled("CANCELLED", "the attempt was cancelled"))

    def thin(self, request_id: str, fencing_token: int, steps: tuple[int, ...]) -> bool:
        """Request that a queued or running attempt runs only these steps, from the first one on; return whether it
        exists. Raises InvalidArgument for steps that it cannot run."""
        held = self._held.get((request_id, fencing_token))
        if held is None or held.order is None:
            return False
        check_asked_steps(held.order, steps)
        held.order.asked_steps.ask(steps)
        return True

    async def drain(self) -> None:
        """Admit no further attempts; return when every running one has ended and its stream has delivered the
        outcome."""
        self.draining = True
        self._note_change()
        while any(held.outcome is None or not held.orphaned for held in self._held.values()):
            self._turn.clear()
            await self._turn.wait()

    def close(self) -> None:
        for held in list(self._held.values()):
            self._stop(held, Unavailable(Reason.WORKER_STOPPED, "the worker stopped before the image was done"))
            self._forget(held)

    def _note_change(self) -> None:
        self._turn.set()
        self._changed()

    def _admit(self, order: ExecuteOrder) -> HeldAttempt:
        attempt = order.attempt
        self.meet_frontdoor(attempt.frontdoor_id, attempt.frontdoor_epoch, order.journal_id)
        held = HeldAttempt(order)
        if held.key in self._cancelled_early:
            raise Cancelled("CANCELLED", "the attempt was cancelled before it arrived")
        self._fence(attempt)
        if self.draining:
            raise Unavailable(Reason.DRAINING, "this worker is stopping")
        if held.key in self._held:
            raise FailedPrecondition("ATTEMPT_EXISTS", "this attempt is here already: attach to it")
        if self.held_counts()[attempt.frontdoor_id] >= (capacity := self._capacity(attempt.frontdoor_id)):
            raise ResourceExhausted("NO_CREDIT", f"this worker holds at most {capacity} of your attempts now")
        spec = order.spec
        self.credits.admit(attempt.frontdoor_id, spec.num_inference_steps * spec.width_px * spec.height_px)
        self._held[held.key] = held
        held.task = spawn_detached(self._run(held, order), "attempt")
        self._expire_later(held)
        self._note_change()
        return held

    def _fence(self, attempt: Attempt) -> None:
        """Let the newest fencing token of a request win: stop or reject attempts with older ones."""
        newest = self._newest_tokens.get(attempt.request_id, -1)
        if attempt.fencing_token < newest:
            raise Aborted("FENCED_OFF", "a newer attempt at this request has been here")
        remember(self._newest_tokens, attempt.request_id, attempt.fencing_token)
        for held in self.running():
            if held.attempt.request_id == attempt.request_id and held.attempt.fencing_token < attempt.fencing_token:
                self._stop(held, Aborted("FENCED_OFF", "a newer attempt at this request has taken over"))

    async def _run(self, held: HeldAttempt, order: ExecuteOrder) -> None:
        try:
            held.settle(await self._runner(order, held.hear))
        except PentimentoError as error:
            held.settle(error)
        except asyncio.CancelledError:
            held.settle(Cancelled("CANCELLED", "the attempt was stopped"))
        except Exception as error:
            logger.exception("an attempt failed")
            held.settle(Internal("ATTEMPT_FAILED", f"the attempt failed: {type(error).__name__}"))
        finally:
            self._count(held)
            if held.orphaned:
                self._expire_later(held)
            self._note_change()

    def _count(self, held: HeldAttempt) -> None:
        if isinstance(held.outcome, AttemptOutcome):
            self.completed_count += 1
            metrics.IMAGES.labels("completed").inc()
        else:
            stopped = isinstance(held.outcome, Cancelled | Aborted)
            self.failed_count += not stopped
            metrics.IMAGES.labels("stopped" if stopped else "failed").inc()

    async def _follow(self, held: HeldAttempt) -> AsyncGenerator[StreamEvent, None]:
        if held.expiry is not None:
            held.expiry.cancel()
        self._note_change()
        try:
            async with aclosing(held.read()) as events:
                async for event in events:
                    yield event
        finally:
            if held.orphaned:
                self._expire_later(held)
            self._note_change()

    def _expire_later(self, held: HeldAttempt) -> None:
        """Schedule the removal of an orphan or finished attempt after `orphan_s`; only the newest finished ones
        stay."""
        if held.expiry is not None:
            held.expiry.cancel()
        held.expiry = asyncio.get_running_loop().call_later(self._orphan_s, self._expire, held)
        finished = [other for other in self._held.values() if other.outcome is not None and other.orphaned]
        for other in finished[:-KEPT_RESULTS]:
            self._forget(other)

    def _expire(self, held: HeldAttempt) -> None:
        if held.orphaned:
            self._stop(held, Cancelled("ORPHANED", "the stream broke and no call attached in time"))
            self._forget(held)

    def _stop(self, held: HeldAttempt, error: PentimentoError) -> bool:
        if held.outcome is not None or held.task is None:
            return False
        held.settle(error)
        held.task.cancel()
        return True

    def _forget(self, held: HeldAttempt) -> None:
        if held.expiry is not None:
            held.expiry.cancel()
        self._held.pop(held.key, None)
