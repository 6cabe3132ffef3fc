"""Take the results of attempts: check them, count their starts, and note their timings."""

from dataclasses import dataclass

from pentimento.dataplane.demand_report import StartCounts
from pentimento.domain.clock import Clock
from pentimento.domain.errors import Internal
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import StageTiming
from pentimento.domain.replay import taken_of
from pentimento.domain.thinned_steps import taken_count
from pentimento.stores.objects.store import digest_of
from services.frontdoor.metrics import STARTS, THINNED_STEPS
from services.frontdoor.requests.jobs import Execution, Job
from services.frontdoor.routing.cache_writes import CacheWriter
from services.frontdoor.routing.starts import kind_of, work_left
from services.frontdoor.routing.step_rules import ControlPipelining
from services.frontdoor.status import PaintedCounts


@dataclass(frozen=True)
class AttemptResults:
    """Take one result of each attempt. `starts` counts the planned starts. `cache` is None without a cache."""

    pipelining: ControlPipelining
    cache: CacheWriter | None
    starts: StartCounts
    painted: PaintedCounts
    clock: Clock

    def take(self, job: Job, execution: Execution, result: AttemptResult) -> float:
        """Store the result. Return its work in pixel steps if that differs from the routed work, else 0. Raises
        Internal for a corrupt image or a result of another attempt."""
        theirs, ours = result.attempt, execution.attempt
        if (theirs.request_id, theirs.fencing_token) != (ours.request_id, ours.fencing_token):
            raise Internal("RESULT_MISMATCH", "the worker answered with the result of another attempt")
        if digest_of(result.image) != result.image_digest:
            raise Internal("RESULT_CORRUPT", "the image does not match its digest")
        execution.result = result
        self.pipelining.learn(execution.resolved.spec, result.residual_wait_share)
        if result.bad_donor_reason and self.cache is not None:
            self.cache.report_bad_donor(execution.route, result.bad_donor_reason)
        _time_attempt(job, execution, result, self.clock.monotonic())
        return self._account_start(job, execution, result)

    def _account_start(self, job: Job, execution: Execution, result: AttemptResult) -> float:
        """Count the image's actual start and report it to the gateway; return the work as `take` does."""
        route = execution.route
        taken = taken_of(route.start, result.steps_saved)
        passed_over = taken != route.start
        STARTS.labels("passed_over" if passed_over else kind_of(taken)).inc()
        self.painted.count(kind_of(taken), result.steps_run, result.steps_saved)
        if self.cache is not None:
            self.cache.report_start(route, not passed_over)
        if not passed_over:
            return _work_midway(execution, result)
        routed = job.routed[execution.stage]
        if routed.counted is not None:
            self.starts.correct(*routed.counted)
            # Another attempt of the same stage is still the same request.
            routed.counted = None
        return work_left(execution.resolved, taken)


def left_out_steps(execution: Execution) -> int:
    """Return the number of steps that thinning skips in the attempt."""
    steps = execution.resolved.spec.num_inference_steps
    return steps - taken_count(execution.route.thinned_steps, steps)


def _work_midway(execution: Execution, result: AttemptResult) -> float:
    """Return the actual work, in pixel steps, of an attempt asked to skip steps while it ran; 0 for others."""
    if not execution.asked_midway:
        return 0.0
    spec = execution.resolved.spec
    if result.thinned_steps:
        THINNED_STEPS.inc(spec.num_inference_steps - taken_count(result.thinned_steps, spec.num_inference_steps))
    return float(spec.width_px * spec.height_px * max(result.steps_run, 1))


def _time_attempt(job: Job, execution: Execution, result: AttemptResult, now: float) -> None:
    """Note the attempt's stages. The worker's clock starts when the attempt reaches it, at an unknown time: the
    remaining time is split equally between sending and receiving."""
    worker_s = max((timing.start_ms + timing.duration_ms for timing in result.timings), default=0.0) / 1000
    way_s = max(now - execution.sent_at - worker_s, 0.0) / 2
    reached_at = execution.sent_at + way_s
    begin_ms = (reached_at - job.request.arrived_at) * 1000
    job.time_stage("execute", execution.sent_at, now)
    job.time_stage("send", execution.sent_at, reached_at)
    job.timings += [
        StageTiming(f"worker.{timing.stage}", begin_ms + timing.start_ms, timing.duration_ms)
        for timing in result.timings
    ]
    job.time_stage("receive", now - way_s, now)
