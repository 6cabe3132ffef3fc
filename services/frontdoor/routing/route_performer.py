"""The effects that decide where a request starts."""

import logging
from collections.abc import Callable
from dataclasses import replace

from pentimento.dataplane import Dataplane
from pentimento.dataplane.effects import PrepareRoute, ResolveRoute
from pentimento.dataplane.events import Event, RouteOption, RouteResolved
from pentimento.domain.clock import Clock
from pentimento.domain.embedding import Embedding
from pentimento.domain.fleet import HeldModel, PoolPlan
from pentimento.domain.generation import FromImage, PlanVersion, Route
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.serving.entry import IMAGE, start_pools
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.routing.router import Router, steps_saved, work_left
from services.frontdoor.routing.stages import PoolOption, as_painted_by, as_started_by, cascade_stages, fits
from services.frontdoor.workers.catalogue import Catalogue

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
        count_start: Callable[[str, int], None],
    ) -> None:
        """`count_start` hears of every start: pool and step."""
        self._router = router
        self._catalogue = catalogue
        self._jobs = jobs
        self._dataplane = dataplane
        self._submit = submit
        self._clock = clock
        self._count_start = count_start

    def prepare(self, effect: PrepareRoute) -> None:
        job = self._jobs.get(effect.request_id)
        job.embedding = self._jobs.spawn(job, self._embed(job), effect)

    def resolve(self, effect: ResolveRoute) -> None:
        job = self._jobs.get(effect.request_id)
        self._jobs.spawn(job, self._resolve(job, effect.cascade_stage), effect)

    async def _embed(self, job: Job) -> Embedding | None:
        """Whatever is wrong here costs the cache alone."""
        try:
            return await self._router.embed(job.tenant, job.resolved, job.note)
        except Exception:
            logger.exception("a prompt was not embedded")
            job.note("cache skipped: embedder defect")
            return None

    async def _resolve(self, job: Job, number: int) -> None:
        stage = job.stages[number]
        held = await self._catalogue.wait_for(stage.model)
        started_at = self._clock.monotonic()
        resolved = as_painted_by(job.resolved, held)
        route = await self._decide(job, resolved, held)
        self._count_start(stage.pool, steps_saved(route.start))
        job.cascade_stage, job.route_journalled = number, False
        job.options = self._options(job, PoolOption(stage.pool, held, resolved, route))
        job.take(job.options[0])
        job.queued_at = self._clock.monotonic()
        job.time_stage("route", started_at, job.queued_at)
        job.audience.routed(job.options[0].route)
        first, *others = (_as_route_option(option) for option in job.options)
        self._submit(
            RouteResolved(job.request_id, first.pool, first.model_digest, first.work, number, spare=tuple(others))
        )

    def _options(self, job: Job, own: PoolOption) -> tuple[PoolOption, ...]:
        """The plan's, for a picture to start from; a latent is of use to its own model alone."""
        plan = self._dataplane.state.plan
        if plan is None or not isinstance(own.route.start, FromImage):
            return (own,)
        options = (self._option(job, own, pool) for pool in start_pools(plan.pools, IMAGE, job.draw, own.pool))
        return tuple(option for option in options if option is not None) or (own,)

    def _option(self, job: Job, own: PoolOption, pool: PoolPlan) -> PoolOption | None:
        """None where the pool's model was never held, or cannot paint it."""
        if pool.model == own.held.model:
            return replace(own, pool=pool.pool)
        held = self._catalogue.known(pool.model)
        if held is None or not fits(job.resolved, held):
            return None
        return as_started_by(own, pool.pool, as_painted_by(job.resolved, held), held)

    async def _decide(self, job: Job, resolved: ResolvedRequest, held: HeldModel) -> Route:
        embedding = await job.embedding if job.embedding is not None else None
        plan = self._dataplane.state.plan
        version = plan.version if plan is not None else PlanVersion()
        route = await self._router.decide(job.tenant, resolved, held, embedding, version, job.note)
        return replace(route, stages=cascade_stages(job.stages))


def _as_route_option(option: PoolOption) -> RouteOption:
    return RouteOption(option.pool, option.route.model_digest, work_left(option.resolved, option.route.start))
