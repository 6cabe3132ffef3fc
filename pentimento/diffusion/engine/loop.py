"""Run the step engine's loop without its thread: `tick` takes one denoising step of one batch.

Between two steps requests join at their start step, leave when they are done or stopped, yield to more urgent ones and
return. `Denoising` holds the whole state of a request between steps; a batch only computes its next step.

Determinism: the same requests in the same batches give the same bits. In float32 on a CPU with AVX-512, not compiled, a
guided request has the same bits in any batch as alone; an unguided one differs by rounding, at most 1e-4, if kernels
sum in another order at another batch size. On other devices both differ by rounding (ADR 0009).
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from typing import TypeVar

from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest, condition_again, prepare, take_step
from pentimento.diffusion.engine.denoiser import Denoiser
from pentimento.diffusion.engine.job import BatchReport, DenoisingListener, EngineJob, EngineObserver
from pentimento.diffusion.engine.pairing import GuidancePairs
from pentimento.diffusion.engine.probe import (
    BatchLimits,
    as_typed,
    finite_parts,
    is_out_of_memory,
    not_finite,
    release_unused,
)
from pentimento.diffusion.engine.rows import DenoiserAdapters, RowBuffers
from pentimento.diffusion.engine.split_passes import SplitPasses, by_pass, predicted
from pentimento.diffusion.families.model import BatchKey, DiffusionModel
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import PentimentoError
from pentimento.policies.step_batching import GroupTurns, due_at


@dataclass(frozen=True)
class EngineSettings:
    """Hold the engine's settings. `threads` are torch's. At most `max_batch` requests share a forward pass. A request
    without a deadline is due `aging_limit_s` after its arrival; with `preempt` more urgent requests replace running
    ones, and sizes alternate."""

    threads: int = 1
    max_batch: int = 8
    aging_limit_s: float = 30.0
    preempt: bool = True


logger = logging.getLogger(__name__)

T = TypeVar("T")

# Groups with buffers in memory: the groups that alternate, and the next request's.
KEPT_GROUPS = 16


@dataclass(frozen=True)
class _Forward:
    """Hold a batch in the order of its rows, its prediction, and for each request whether the prediction is finite.
    `present` includes the requests with late residuals; `jobs` may be empty."""

    present: list[EngineJob]
    jobs: list[EngineJob]
    prediction: Tensor
    finite: list[bool]
    began_at: float


class StepLoop:
    """Run the engine's loop. One thread only, except for `submit` and the counts."""

    def __init__(
        self,
        model: DiffusionModel,
        denoiser: Denoiser,
        limits: BatchLimits,
        settings: EngineSettings,
        observer: EngineObserver,
        monotonic: Callable[[], float],
    ) -> None:
        self._model = model
        self._denoiser = denoiser
        self._limits = limits
        self._settings = settings
        self._observer = observer
        self._monotonic = monotonic
        self._prompts = PromptMemo(model)
        self._adapters = DenoiserAdapters(model)
        self.pairs = GuidancePairs(model, monotonic)
        self._numbers = count()
        self._inbox: deque[EngineJob] = deque()
        self._jobs: dict[int, EngineJob] = {}
        self._split = SplitPasses(denoiser, self._poll, monotonic)
        self._turns = GroupTurns()
        self._last_batch: frozenset[int] = frozenset()
        self._stepped_at = -math.inf
        # Keys are the rows' shape, and whether they reuse deep features: a request alternates between the two.
        self._groups: dict[tuple[BatchKey, bool], RowBuffers] = {}

    def submit(
        self, request: DenoisingRequest, listener: DenoisingListener, wake: Callable[[], None] = lambda: None
    ) -> EngineJob:
        """Add a request, on any thread; the next tick takes it in. `wake` is called when it is to stop or to skip
        steps."""
        now = self._monotonic()
        due = due_at(now, request.deadline, self._settings.aging_limit_s)
        shape = self._model.info.batch_key(request.spec)
        job = EngineJob(next(self._numbers), request, shape, listener, now, due, wake)
        self._inbox.append(job)
        return job

    def tick(self) -> bool:
        """Take one denoising step of the next batch; return False if no request was ready."""
        self._drop_stopped()
        for number in self.pairs.waiting():
            self._guard(self._jobs[number], self._join_pair)
        ready = [job for job in list(self._jobs.values()) if self._guard(job, self._can_go_on)]
        chosen = self._turns.choose(ready, self._limits.limit, preempt=self._settings.preempt)
        self._count_preempted(ready, chosen)
        begun = self._begun(chosen)
        # Before the steps are taken: a request that pairs its next step with a peer changes its group.
        group = chosen[0].key if chosen else None
        forwards = (forward for jobs in by_pass(begun) for forward in self._forwards(jobs))
        seconds = sum(self._take_steps(forward) for forward in forwards)
        if group is not None:
            self._turns.ran(group, seconds, ready)
        return bool(chosen)

    @property
    def running_count(self) -> int:
        """Return the number of requests that have begun."""
        return sum(job.running for job in list(self._jobs.values()))

    @property
    def waiting_count(self) -> int:
        """Return the number of requests that have not begun."""
        return len(self._inbox) + len(self._jobs) - self.running_count

    @property
    def idle(self) -> bool:
        """Return whether the loop has no request."""
        return not self._inbox and not self._jobs

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of a request or a peer; None if there is none."""
        deadlines = [self.pairs.next_deadline(), *(job.request.deadline for job in self._jobs.values())]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def fail_all(self, error: PentimentoError) -> None:
        """End every request with `error`."""
        self._take_in()
        for number in list(self._jobs):
            self._fail(number, error)

    def restore_weights(self) -> None:
        """Restore the model's base weights. Between requests LoRAs stay patched in, for the next one's set."""
        self._adapters.restore()

    def release(self) -> None:
        """Restore the model's base weights, and free the memory of batches. The loop is not used again."""
        self.restore_weights()
        self._groups.clear()
        self._denoiser.release_memory()

    def _take_in(self) -> None:
        while self._inbox:
            job = self._inbox.popleft()
            self._jobs[job.number] = job

    def _drop_stopped(self) -> None:
        self._take_in()
        now = self._monotonic()
        for job in list(self._jobs.values()):
            if (error := job.stop_error(now)) is not None:
                self._fail(job.number, error)

    def _poll(self, job: EngineJob) -> bool | None:
        """Take the residuals that have arrived; return whether the next step has all."""
        return self._guard(job, lambda one: one.has_residuals(self._model))

    def _can_go_on(self, job: EngineJob) -> bool:
        """Return whether the request can take its next step, or that step's first half, with its LoRAs or before they
        arrive. At most `max_batch` requests wait after the first half: each holds its encoding in memory."""
        if job.takes_adapters():
            job.patched = self._adapters.patched(job)
            if job.running:
                self._condition_again(job)
        if not job.may_go_on_without_adapters or not job.takes_input() or self.pairs.awaits(job):
            return False
        self.pairs.begin_step(job)
        if job.has_residuals(self._model) or job.may_advance:
            return True
        waiting = sum(other.encoding is not None for other in self._jobs.values())
        return job.encoding is None and waiting < self._settings.max_batch

    def _count_preempted(self, ready: Sequence[EngineJob], chosen: Sequence[EngineJob]) -> None:
        batch = frozenset(job.number for job in chosen)
        if given_way := sum(job.number in self._last_batch and job.number not in batch for job in ready):
            self._observer.preempted(given_way)
        self._last_batch = batch

    def _begun(self, chosen: Sequence[EngineJob]) -> list[EngineJob]:
        """Return the chosen requests that can take a step. Prepares new requests; a failure ends only that request."""
        keys = {job.key for job in chosen}
        for job in chosen:
            if not job.running:
                self._guard(job, self._begin)
        # A request that has a peer by now, or a long prompt, has moved to another group, which runs later.
        return [job for job in chosen if job.running and self._guard(job, self._can_go_on) and job.key in keys]

    def _begin(self, job: EngineJob) -> None:
        job.started_at = self._monotonic()
        self._observer.admitted(job.started_at - job.queued_at)
        self._settle_adapters(job)
        denoising = prepare(self._model, self._prompts, job.request, job.adapters, job.adapter_row)
        job.begin(denoising, self._model.extra_tokens(denoising.conditioning))
        job.prepared_at = self._monotonic()
        job.device_s = job.prepared_at - job.started_at
        job.begins_step(job.prepared_at)
        job.listener.started(denoising.state.step_index, denoising.schedule.step_count)
        self._finish_if_done(job)

    def _settle_adapters(self, *jobs: EngineJob) -> None:
        """Set the weights for the next pass of `jobs`: with the LoRAs of all running requests if they share one set,
        else without any. Requests that need patched weights do not count: they have passes apart."""
        key = jobs[0].key
        others = () if key.alone or key.patched else self._jobs.values()
        self._adapters.settle([*jobs, *(other for other in others if other.running and not other.patched)])
        for job in jobs:
            job.adapter_row = self._adapters.row(job)

    def _condition_again(self, job: EngineJob) -> None:
        """Condition a request again after its LoRAs arrived late: they change its text states."""
        self._settle_adapters(job)
        condition_again(self._model, self._prompts, job.begun, job.adapters, job.adapter_row)
        self._leave_rows(job)

    def _forwards(self, jobs: list[EngineJob]) -> Iterator[_Forward]:
        """Yield the network's predictions for `jobs`. A batch that fails is halved until the failing request is alone:
        an error ends only the request that causes it, and little memory leads to small batches."""
        if not jobs:
            return
        try:
            forward = self._forward(jobs)
        except Exception as error:
            halves, ran_out = self._halves(jobs, error), is_out_of_memory(error)
        else:
            yield forward
            return
        if ran_out:
            self._denoiser.release_memory()
            release_unused(self._model.device)
        for half in halves:
            yield from self._forwards(half)

    def _forward(self, jobs: list[EngineJob]) -> _Forward:
        began_at = self._monotonic()
        self._settle_adapters(*jobs)
        rows = self._rows_for(jobs[0])
        if any(job.is_split for job in jobs):
            seated, prediction = self._split.run(rows, jobs)
        else:
            seated = rows.seat(jobs)
            prediction = predicted(self._denoiser, rows, seated)
        # The check waits for an asynchronous device: its errors are raised here, and the seconds include all its work.
        finite = finite_parts(prediction[: len(seated) * rows.rows_each], len(seated))
        return _Forward(jobs, seated, prediction, finite, began_at)

    def _rows_for(self, job: EngineJob) -> RowBuffers:
        key = (job.shape, job.begun.reuses_features)
        rows = self._groups.pop(key, None)
        if rows is None:
            padded = partial(self._denoiser.padded, job.shape)
            rows = RowBuffers(self._model, job.begun, self._settings.max_batch, padded)
        self._groups[key] = rows
        while len(self._groups) > KEPT_GROUPS:
            self._groups.pop(next(iter(self._groups)))
        return rows

    def _halves(self, jobs: list[EngineJob], error: Exception) -> list[list[EngineJob]]:
        """Return the jobs in two halves; end a request that failed alone and return none. After out of memory, return
        all jobs together if other groups' buffers or adapter rows could be dropped."""
        if is_out_of_memory(error):
            if self._gives_up_kept(jobs):
                return [jobs]
            self._limits.ran_out(jobs[0].shape, len(jobs))
            self._observer.ran_out_of_memory(len(jobs))
            logger.warning("out of device memory for a batch of %d", len(jobs))
        if len(jobs) == 1:
            self._fail(jobs[0].number, as_typed(error))
            return []
        middle = len(jobs) // 2
        return [jobs[:middle], jobs[middle:]]

    def _gives_up_kept(self, jobs: list[EngineJob]) -> bool:
        """Drop the buffers of other groups and the adapter rows that none of the jobs uses; return whether there were
        any. Both are rebuilt on demand."""
        others = [key for key in self._groups if key[0] != jobs[0].shape]
        for key in others:
            del self._groups[key]
        return self._adapters.forget_but(jobs) or bool(others)

    def _take_steps(self, forward: _Forward) -> float:
        jobs, prediction = forward.jobs, forward.prediction
        rows_each = jobs[0].begun.row_count if jobs else 1
        parts = prediction.split(rows_each) if jobs else ()
        taken = []
        half_s = self._monotonic() - forward.began_at
        for job, rows, finite in zip(jobs, parts, forward.finite, strict=False):  # padding comes last
            if finite and self._guard(job, partial(self._take_step, rows, half_s)):
                taken.append(job)
            elif not finite:
                self._fail(job.number, not_finite())
        seconds = self._monotonic() - forward.began_at
        if len(taken) == 1 and len(jobs) == 1 and rows_each == 2 and not jobs[0].request.full_steps:
            self.pairs.ran_whole(jobs[0], seconds)
        if jobs:
            self._observer.ran(BatchReport(len(jobs), prediction.shape[0], seconds))
        if taken:
            step_s, self._stepped_at = min(taken[0].step_s, self._monotonic() - self._stepped_at), self._monotonic()
            if rows_each == 1 + taken[0].guided:  # not a half of its guidance
                self._observer.took_step(taken[0].whole_shape, step_s, alone=len(forward.present) == 1)
        for job in forward.present:
            job.device_s += seconds / len(forward.present)
        for job in taken:
            self._guard(job, self._tell)
        return seconds

    def _take_step(self, rows: Tensor, seconds: float, job: EngineJob) -> bool:
        """Take the step and return True; False if the peer's half has not arrived."""
        prediction = self.pairs.computed(job, rows, seconds)
        if prediction is not None:
            self._advance(job, prediction)
        return prediction is not None

    def _advance(self, job: EngineJob, prediction: Tensor) -> None:
        job.begins_step(self._monotonic())
        job.thin_if_asked(self._model)
        take_step(self._model, job.begun, prediction)
        job.forget_step()
        # Other workers compute these: request the next step before reporting this one. The peer first: if it computes
        # one row, residuals are requested only for the other.
        self.pairs.ask_ahead(job)
        job.ask_residuals(self._model)

    def _join_pair(self, job: EngineJob) -> None:
        """Take a paired step if it has both halves."""
        prediction = self.pairs.joined(job)
        if prediction is not None:
            self._advance(job, prediction)
            self._tell(job)

    def _tell(self, job: EngineJob) -> None:
        job.tell_step()
        self._finish_if_done(job)

    def _finish_if_done(self, job: EngineJob) -> None:
        if not job.begun.done:
            return
        finished = job.finished(self._monotonic())
        self._retire(job)
        job.listener.finished(finished)

    def _guard(self, job: EngineJob, act: Callable[[EngineJob], T]) -> T | None:
        """Call `act` on the request and return its result. An error ends the request, never the loop."""
        try:
            return act(job)
        except Exception as error:
            self._fail(job.number, as_typed(error))
            return None

    def _fail(self, number: int, error: PentimentoError) -> None:
        """End the request with `error`. An exception of its listener (its event loop may be closed) does not end the
        engine's thread."""
        if (job := self._jobs.get(number)) is None:
            return
        self._retire(job)
        try:
            job.listener.failed(error)
        except Exception as raised:
            logger.error("a listener raised %s", type(raised).__name__)

    def _retire(self, job: EngineJob) -> None:
        """Remove the request and release all its device memory."""
        del self._jobs[job.number]
        self.pairs.forget(job)
        job.denoising, job.adapters, job.adapter_row = None, (), None
        job.forget_step()
        self._leave_rows(job)

    def _leave_rows(self, job: EngineJob) -> None:
        """Free the request's slots in all row buffers, so that they are filled again."""
        for shape, reuses in product({job.shape, job.whole_shape}, (False, True)):
            if (rows := self._groups.get((shape, reuses))) is not None:
                rows.leave(job)
