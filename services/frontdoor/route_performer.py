"""The effects that decide where a request starts."""

import logging
from collections.abc import Callable
from dataclasses import replace

from pentimento.dataplane import Dataplane
from pentimento.dataplane.effects import PrepareRoute, ResolveRoute
from pentimento.dataplane.events import Event, RouteResolved
from pentimento.domain.clock import Clock
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import PlanVersion, Route
from services.frontdoor.catalogue import Catalogue
from services.frontdoor.jobs import Job, Jobs
from services.frontdoor.paths import as_painted_by, stages_of
from services.frontdoor.resolution import ResolvedRequest
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
        self._jobs.spawn(job, self._resolve(job, effect.cascade_stage), "route")

    async def _resolve(self, job: Job, stage: int) -> None:
        stop = job.way[stage]
        held = await self._catalogue.wait_for(stop.model)
        started_at = self._clock.monotonic()
        resolved = as_painted_by(job.resolved, held)
        route = await self._decide(job, resolved, held)
        job.cascade_stage, job.current, job.held = stage, resolved, held
        job.route, job.route_journalled = route, False
        job.queued_at = self._clock.monotonic()
        job.time_stage("route", started_at, job.queued_at)
        job.audience.routed(route)
        work = work_left(resolved, route.start)
        self._submit(RouteResolved(job.request_id, stop.pool, route.model_digest, work, stage))

    async def _decide(self, job: Job, resolved: ResolvedRequest, held: HeldModel) -> Route:
        assert job.embedding is not None
        plan = self._dataplane.state.plan
        version = plan.version if plan is not None else PlanVersion()
        route = await self._router.decide(job.tenant, resolved, held, await job.embedding, version, job.note)
        return replace(route, stages=stages_of(job.way))
