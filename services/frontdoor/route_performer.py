"""The effects that decide where a request starts."""

import logging
from collections.abc import Callable

from pentimento.dataplane import Dataplane
from pentimento.dataplane.effects import PrepareRoute, ResolveRoute
from pentimento.dataplane.events import Event, RouteResolved
from pentimento.domain.clock import Clock
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import PlanVersion, Route
from services.frontdoor.catalogue import Catalogue
from services.frontdoor.jobs import Job, Jobs
from services.frontdoor.routing import Router, work_left

logger = logging.getLogger(__name__)


class RoutePerformer:
    """Embeds beside the journal's commit; answers ResolveRoute with RouteResolved."""

    def __init__(
        self,
        router: Router,
        catalogue: Catalogue,
        jobs: Jobs,
        dataplane: Dataplane,
        submit: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self._router = router
        self._catalogue = catalogue
        self._jobs = jobs
        self._dataplane = dataplane
        self._submit = submit
        self._clock = clock

    def prepare(self, effect: PrepareRoute) -> None:
        job = self._jobs.get(effect.request_id)
        job.embedding = self._jobs.spawn(job, self._router.embed(job.tenant, job.resolved, job.note), "embed")

    def resolve(self, effect: ResolveRoute) -> None:
        job = self._jobs.get(effect.request_id)
        self._jobs.spawn(job, self._resolve(job), "route")

    async def _resolve(self, job: Job) -> None:
        held = job.held or await self._catalogue.wait_for(job.resolved.spec.model)
        job.held = held
        started_at = self._clock.monotonic()
        job.route = await self._decide(job, held)
        job.queued_at = self._clock.monotonic()
        job.time_stage("route", started_at, job.queued_at)
        job.audience.routed(job.route)
        work = work_left(job.resolved, job.route.start)
        self._submit(RouteResolved(job.request_id, job.route.model, job.route.model_digest, work))

    async def _decide(self, job: Job, held: HeldModel) -> Route:
        assert job.embedding is not None
        plan = self._dataplane.state.plan
        version = plan.version if plan is not None else PlanVersion()
        return await self._router.decide(job.tenant, job.resolved, held, await job.embedding, version, job.note)
