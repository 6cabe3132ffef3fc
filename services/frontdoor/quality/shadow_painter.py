"""Paints one shadow on one worker, beside the dataplane: its credit is nobody's, and it leaves when it is told to."""

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
# What an attempt waits at most for the worker to have heard: a round trip.
LEAVING_S = 0.2


class ShadowRun:
    """A shadow on its way. Its stream ends as the worker has it end: stopped, done or failed."""

    def __init__(self, worker_id: str, link: WorkerLink, attempt: Attempt) -> None:
        self.worker_id = worker_id
        self.stopped = False
        self.link = link
        self.attempt = attempt
        self._stop: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Have it give way: stopped within a denoising step."""
        self.stopped = True
        self.let_go()

    def let_go(self) -> None:
        """Begin to tell the worker that nobody wants it any more."""
        if self._stop is None:
            self._stop = spawn_detached(self._cancel(), "stop shadow")

    async def left(self) -> None:
        """Return once the worker does not count it among its attempts any more, or has not said so for a while."""
        if self._stop is not None:
            await asyncio.wait({self._stop}, timeout=LEAVING_S)

    async def _cancel(self) -> None:
        try:
            await self.link.client.cancel(self.attempt.request_id, self.attempt.fencing_token, STOP_TIMEOUT_S)
        except PentimentoError as error:
            logger.debug("could not stop a shadow", extra={"worker": self.worker_id, "reason": error.reason})


class ShadowPainter:
    """Knows the workers' links, and how this frontdoor signs its attempts."""

    def __init__(self, links: WorkerLinks, identity: Identity) -> None:
        self._links = links
        self._identity = identity

    def begin(self, worker_id: str, tenant: str, fencing_token: int) -> ShadowRun:
        """Return a run that was not sent yet. Raises NotFound for a worker that is gone."""
        link = self._links.of_worker(worker_id)
        if link is None:
            raise NotFound("WORKER_LOST", "the worker is gone")
        attempt = self._identity.attempt(f"shadow-{secrets.token_hex(16)}", tenant, 1, fencing_token)
        return ShadowRun(worker_id, link, attempt)

    async def paint(self, run: ShadowRun, plan: ShadowPlan, most_s: float) -> AttemptResult:
        """Return the picture from noise. It leaves nothing in the cache, and names no deadline, by which it would be
        more urgent than others. Raises TimeoutError after `most_s`, and as the worker."""
        reading = asyncio.ensure_future(self._read(run, plan))
        # Of a worker that is lost nobody would hear any more.
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
        route = Route(f"shadow-{secrets.token_hex(8)}", FromNoise(), held.model, held.model_digest, reason="a shadow")
        stream = link.client.execute(
            run.attempt,
            plan.spec,
            route,
            # Its own: the plan's model is as whichever worker told of it last.
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
