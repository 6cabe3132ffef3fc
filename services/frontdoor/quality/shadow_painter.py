"""Run one shadow on one worker outside the dataplane: it takes no credit, and stops on request."""

import asyncio
import logging
import secrets
from contextlib import aclosing

from pentimento.domain.errors import NotFound, PentimentoError, Unavailable
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import Attempt, FromNoise, Route
from pentimento.rpc import spawn_detached
from services.frontdoor.identity import Identity
from services.frontdoor.quality.shadow_plans import ShadowPlan
from services.frontdoor.workers.worker_links import WorkerLink, WorkerLinks

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 2.0
# Longest wait of an attempt until the worker has received the stop: a round trip.
LEAVING_S = 0.2


class ShadowRun:
    """Hold a running shadow. The worker ends its stream: stopped, done or failed. `paid`: it runs among requests."""

    def __init__(self, worker_id: str, link: WorkerLink, attempt: Attempt, *, paid: bool = False) -> None:
        self.worker_id = worker_id
        self.paid = paid
        self.stopped = False
        self.link = link
        self.attempt = attempt
        self._stop: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop the shadow within a denoising step, to make room for a request."""
        self.stopped = True
        self.let_go()

    def let_go(self) -> None:
        """Begin to cancel the shadow on the worker."""
        if self._stop is None:
            self._stop = spawn_detached(self._cancel(), "stop shadow")

    async def left(self) -> None:
        """Return once the worker has answered the stop, or after `LEAVING_S`."""
        if self._stop is not None:
            await asyncio.wait({self._stop}, timeout=LEAVING_S)

    async def _cancel(self) -> None:
        try:
            await self.link.client.cancel(self.attempt.request_id, self.attempt.fencing_token, STOP_TIMEOUT_S)
        except PentimentoError as error:
            logger.debug("could not stop a shadow", extra={"worker": self.worker_id, "reason": error.reason})


class ShadowPainter:
    """Run shadows over the workers' links, under this frontdoor's identity."""

    def __init__(self, links: WorkerLinks, identity: Identity) -> None:
        self._links = links
        self._identity = identity

    def begin(self, worker_id: str, tenant: str, fencing_token: int, *, paid: bool = False) -> ShadowRun:
        """Return a run that is not sent yet. Raises NotFound for a lost worker."""
        link = self._links.of_worker(worker_id)
        if link is None:
            raise NotFound("WORKER_LOST", "the worker is gone")
        attempt = self._identity.attempt(f"shadow-{secrets.token_hex(16)}", tenant, 1, fencing_token)
        return ShadowRun(worker_id, link, attempt, paid=paid)

    async def paint(self, run: ShadowRun, plan: ShadowPlan, most_s: float) -> AttemptResult:
        """Return the image from noise, or from the start of a trial.

        It is not cached, and has no deadline, which would make it more urgent than requests. Raises TimeoutError after
        `most_s`, and the worker's errors.
        """
        reading = asyncio.ensure_future(self._read(run, plan))
        # The link cancels its runs when the worker is lost.
        run.link.runs.add(reading)
        reading.add_done_callback(run.link.runs.discard)
        try:
            async with asyncio.timeout(most_s):
                return await reading
        except asyncio.CancelledError:
            if reading.cancelled() and not _being_cancelled():
                raise Unavailable("WORKER_LOST", "the worker was lost") from None
            raise
        finally:
            if not reading.done() or reading.cancelled() or reading.exception() is not None:
                run.let_go()
            reading.cancel()

    async def _read(self, run: ShadowRun, plan: ShadowPlan) -> AttemptResult:
        held, link = plan.held, run.link
        start = plan.trial.start if plan.trial is not None else FromNoise()
        route = Route(f"shadow-{secrets.token_hex(8)}", start, held.model, held.model_digest, reason="a shadow")
        stream = link.client.execute(
            run.attempt,
            plan.spec,
            route,
            # Use the worker's own generation: the plan's model has that of the last worker to report.
            link.worker_generation,
            image_format=plan.format.value,
            encoding_quality=plan.provenance.encoding_quality,
            journal_id=self._identity.journal_id,
        )
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, AttemptResult):
                    return event
        raise Unavailable("STREAM_ENDED", "the worker ended the stream without an image")


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
