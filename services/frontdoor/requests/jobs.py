"""Hold the running requests for the interpreter of effects: the facts that the dataplane does not decide by."""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from pentimento.dataplane.demand_report import CountedStart
from pentimento.dataplane.effects import Effect, ResolveRoute
from pentimento.dataplane.endings import failure_of
from pentimento.dataplane.events import Event
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.execution import AttemptResult
from pentimento.domain.fleet import HeldModel
from pentimento.domain.foresight import PromptForesight
from pentimento.domain.generation import Attempt, CacheGrant, Route, StageTiming
from pentimento.domain.image_request import Completed, ResolvedRequest, StartImage
from pentimento.domain.safety import SafetyVerdict
from pentimento.policies.plan.entry import Stage
from pentimento.rpc import detached_context
from pentimento.telemetry.tracing import record_stage
from services.frontdoor.answers.audience import Audience
from services.frontdoor.routing.starts import PoolOption, Trial, as_painted_by

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Hold a client's validated request; it never changes.

    `resolved` is the image to generate, without uploaded bytes; `stages` are its cascade's. `arrived_at` and
    `deadline` are monotonic, `accepted_at` and `deadline_at` wall-clock seconds. `draw` is its own for the shares of
    plans, uniform in 0..1. `webhook_url`: to call at the end of a job, which continues without
    listeners, "" for none; None: it ends when its last listener leaves.
    """

    request_id: str
    tenant: str
    resolved: ResolvedRequest
    stages: tuple[Stage, ...]
    arrived_at: float
    accepted_at: float
    deadline: float
    deadline_at: float
    draw: float = 0.0
    idempotency_key: str = ""
    body_hash: str = ""
    webhook_url: str | None = None

    @property
    def is_job(self) -> bool:
        return self.webhook_url is not None


@dataclass(slots=True)
class RoutedStage:
    """Hold where a stage may run: in one of `options`, and by `journalled` once the journal has the route. A recovered
    stage has no options: its worker will report the models that it holds; its newest attempt started from `handed`, the
    image of the stage before, and later attempts have none. `queued_at` is in monotonic seconds. `counted` is the pool
    and the start counted for plans, None without one."""

    options: tuple[PoolOption, ...]
    queued_at: float
    journalled: Route | None = None
    counted: tuple[str, CountedStart] | None = None
    handed: StartImage | None = None


@dataclass(slots=True)
class Execution:
    """Hold one attempt as it runs. `bound_at` (it got its worker) and `sent_at` are monotonic seconds."""

    attempt: Attempt
    worker_id: str
    stage: int
    resolved: ResolvedRequest
    held: HeldModel | None
    route: Route
    grant: CacheGrant | None = None
    # The worker that computes the other half of its guidance: (worker id, address).
    peer: tuple[str, str] | None = None
    # The discriminator's confidence in its image.
    confidence: float | None = None
    bound_at: float = 0.0
    sent_at: float = 0.0
    # Its worker was requested to skip steps while it ran.
    asked_midway: bool = False
    result: AttemptResult | None = None
    image_verdict: SafetyVerdict | None = None
    completed: Completed | None = None


@dataclass(frozen=True, slots=True)
class PendingEntries:
    """Hold an attempt's grant, and the facts that the gateway needs to index its entries."""

    scope: CacheScope
    embedding: PromptEmbedding
    execution: Execution
    grant: CacheGrant


@dataclass(slots=True)
class Job:
    """Hold a running request. Only the dataplane knows its current stage and attempt; its effects carry them. `routed`
    is by the number of the stage, `executions` by fencing token. `restaged`: the stages of its cascade once its start
    is known; empty before."""

    request: ClientRequest
    audience: Audience
    routed: dict[int, RoutedStage] = field(default_factory=dict)
    executions: dict[int, Execution] = field(default_factory=dict)
    embedding: "asyncio.Task[PromptEmbedding | None] | None" = None
    # True if it uses the cache: a lookup, and an insertion afterwards
    asks_cache: bool = True
    # device seconds of its image from noise, as predicted when it came; None if unknown
    noise_s: float | None = None
    timings: list[StageTiming] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    restaged: tuple[Stage, ...] = ()
    # the prediction of its light image by the prompt; None without one
    foreseen: PromptForesight | None = None
    # Seconds of its light stage ÷ those of the next one; 0 if unknown.
    light_price: float = 0.0
    # Why its cascade does not pay; "" if it does.
    cascade_left_out: str = ""
    # The resolution of its start that runs now; answers of earlier ones are ignored.
    resolving: ResolveRoute | None = None
    # The error of its attempt, for the client's status; the journal stores its reason and message.
    failure: PentimentoError | None = None
    # Another frontdoor continues it: its inputs stay.
    elsewhere: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # The context of its call, without the call's deadline and caller.
    context: contextvars.Context = field(default_factory=detached_context)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.restaged or self.request.stages

    def execution(
        self, attempt: Attempt, worker_id: str, stage: int, option: int, known: Callable[[str], HeldModel | None]
    ) -> Execution:
        """Begin an attempt at a stage by one of its options, and store it. `known` returns a model as last held."""
        routed, route = self.routed[stage], self.routed[stage].journalled
        if routed.options:
            chosen = routed.options[option]
            execution = Execution(attempt, worker_id, stage, chosen.resolved, chosen.held, route or chosen.route)
        else:
            assert route is not None
            held, asked = known(route.model), self.request.resolved
            resolved = as_painted_by(asked, held) if held is not None else asked
            execution = Execution(attempt, worker_id, stage, resolved, held, route)
        self.executions[attempt.fencing_token] = execution
        return execution

    def trial_of(self, execution: Execution) -> Trial | None:
        """Return the trial of an attempt from noise; None without one."""
        routed = self.routed.get(execution.stage)
        options = routed.options if routed is not None else ()
        return next((option.trial for option in options if option.held == execution.held), None)

    def time_stage(self, stage: str, started_at: float, ended_at: float) -> None:
        """Note a stage, in milliseconds since the request arrived, and record it in the request's trace."""
        self.context.run(record_stage, stage, started_at, ended_at)
        begin_ms = (started_at - self.request.arrived_at) * 1000
        self.timings.append(StageTiming(stage, begin_ms, (ended_at - started_at) * 1000))

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


class Jobs:
    """Hold every request that has not ended, and the tasks that work for them.

    A task's cause is its effect, or a name for other work. The dataplane receives EffectFailed for an effect with a
    task that raises or is cancelled; during a shutdown the event is not processed.
    """

    def __init__(self, submit: Callable[[Event], None]) -> None:
        self._submit = submit
        self._jobs: dict[str, Job] = {}
        self._counts: Counter[str] = Counter()
        # Called with every job that has ended.
        self.on_end: Callable[[Job], None] = lambda job: None
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def count_of(self, tenant: str) -> int:
        return self._counts[tenant]

    def add(self, job: Job) -> None:
        self._jobs[job.request.request_id] = job
        self._counts[job.request.tenant] += 1

    def find(self, request_id: str) -> Job | None:
        return self._jobs.get(request_id)

    def of_tenant(self, tenant: str, request_id: str) -> Job | None:
        job = self.find(request_id)
        return job if job is not None and job.request.tenant == tenant else None

    def get(self, request_id: str) -> Job:
        """Return the job. Raises KeyError for a request that has ended: the dataplane never asks for one."""
        return self._jobs[request_id]

    def end(self, job: Job, error: PentimentoError | None = None) -> None:
        """End the streams of the job's listeners, with `error` if it failed, and forget the job."""
        job.audience.end(error)
        if self._jobs.pop(job.request.request_id, None) is not None:
            self._counts[job.request.tenant] -= 1
            if not self._counts[job.request.tenant]:
                del self._counts[job.request.tenant]
            self.on_end(job)
        job.ended.set()

    def spawn(self, job: Job, work: Coroutine[Any, Any, Any], cause: Effect | str) -> "asyncio.Task[Any]":
        """Run work for a request, with its request id and without a deadline, regardless of the event that caused
        it."""
        return self._spawn(job.context.copy(), work, cause)

    def spawn_background(self, work: Coroutine[Any, Any, Any], cause: Effect | str) -> "asyncio.Task[Any]":
        return self._spawn(contextvars.Context(), work, cause)

    async def finish_tasks(self) -> None:
        """Wait for the tasks that still run, such as commits of cache entries."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.finish_tasks()

    def _spawn(
        self, context: contextvars.Context, work: Coroutine[Any, Any, Any], cause: Effect | str
    ) -> "asyncio.Task[Any]":
        name = cause if isinstance(cause, str) else type(cause).__name__
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._forget(ended, cause))
        return task

    def _forget(self, task: "asyncio.Task[Any]", cause: Effect | str) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work for a request failed", exc_info=error, extra={"work": task.get_name()})
        if not isinstance(cause, str) and (task.cancelled() or error is not None):
            self._submit(failure_of(cause))
