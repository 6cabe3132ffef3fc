"""Choose the models that generate a request: the client's, else those of the plan, else those of the settings."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pentimento.dataplane import Dataplane
from pentimento.domain.errors import Unavailable
from pentimento.domain.fleet import HeldModel
from pentimento.domain.image_request import AdmittedStages, ImageRequest, ResolvedRequest
from pentimento.domain.prompt_syntax import WEIGHTED_FAMILIES
from pentimento.policies.plan.entry import Stage, allowed_stages, replanned_stages, request_stages, stages_from
from services.frontdoor.requests.jobs import Job
from services.frontdoor.routing.starts import PoolOption, kind_of
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue

RETRY_MS = 1000


@dataclass(frozen=True)
class StageChoice:
    """Choose stages under the present plan, in pools that the tenant may use. `cascade` names the models of the stages
    if the plan has none."""

    dataplane: Dataplane
    catalogue: Catalogue
    adapters: AdapterCatalogue
    tenants: TenantDirectory
    cascade: Sequence[str]

    def of_model(self, tenant: str, model: str, draw: float) -> tuple[Stage, ...]:
        """Return the stages of a request that names the model. `draw`, uniform in 0..1, chooses among its pools."""
        return request_stages(self.dataplane.state.index, model, draw, quota=self.tenants.quota_of(tenant))

    def choose(self, tenant: str, request: ImageRequest, draw: float) -> tuple[HeldModel, tuple[Stage, ...]]:
        """Return the model that a request is validated against, and its stages; a named model is the only stage.

        `draw` chooses by the plan's shares among its pools. Without a named model, the request's steps and guidance
        scale apply to the deployment's default model; every other model uses its own defaults. Raises NotFound for an
        unknown model, Unavailable until a worker has held a model of the plan.
        """
        quota, plan = self.tenants.quota_of(tenant), self.dataplane.state.index
        named = request.model or request.init_image is not None
        stages = () if named else request_stages(plan, "", draw, self.cascade, quota)
        if not stages:
            held = self.catalogue.find(request.model)
            return held, self.of_model(tenant, held.model, draw)
        known = self._known(stages)
        if not known:
            models = ", ".join(stage.model for stage in stages)
            raise Unavailable("MODEL_NOT_LOADED", f"no worker has loaded {models} yet", retry_after_ms=RETRY_MS)
        return self.catalogue.default() or self.catalogue.find(known[-1].model), known

    def fitting(self, stages: Sequence[Stage], resolved: ResolvedRequest) -> tuple[Stage, ...]:
        """Return the stages with models that can generate the request. Raises NotFound for an unknown model."""
        return tuple(stage for stage in stages if self.fits(resolved, self.catalogue.find(stage.model)))

    def allowed(self, tenant: str, stages: Sequence[Stage]) -> tuple[Stage, ...]:
        return allowed_stages(stages, self.tenants.quota_of(tenant))

    def from_start(self, job: Job, entered: PoolOption) -> tuple[Stage, ...]:
        """Return the stages of a request with a known start."""
        request, start = job.request, kind_of(entered.route.start)
        of_request = (request.draw, self.tenants.quota_of(request.tenant))
        plan = self.dataplane.state.index
        stages = stages_from(plan, request.stages, entered.pool, entered.held.model, start, *of_request)
        return self.allowed(request.tenant, self._known(stages, request.resolved.admitted))

    async def again(self, job: Job) -> tuple[Stage, ...]:
        """Return the stages of a request after its stages lost all workers: those, marked deserted, then the planned
        stages that can run it; if none can, the last one again.

        Wait for the first planned model: after a start not all workers have registered yet.
        """
        request, quota = job.request, self.tenants.quota_of(job.request.tenant)
        planned = replanned_stages(self.dataplane.state.index, request.draw, quota)
        if planned:
            await self.awaited_model(job, planned[0].model)
        fitting = self.fitting(self._known(planned), request.resolved)
        return (*(replace(stage, deserted=True) for stage in job.stages), *(fitting or job.stages[-1:]))

    async def awaited_model(self, job: Job, name: str) -> HeldModel | None:
        """Return the model as soon as a worker has it; None if the request ends before."""
        while (known := self.catalogue.known(name)) is None and not job.ended.is_set():
            waiting = [asyncio.ensure_future(self.catalogue.wait_for(name)), asyncio.ensure_future(job.ended.wait())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()
        return known

    def may_run(self, tenant: str, resolved: ResolvedRequest, pool: str, model: str) -> bool:
        """Return whether the tenant may use the pool, and its model was ever held and can generate the request."""
        held = self.catalogue.known(model)
        return self.tenants.quota_of(tenant).allows(pool) and held is not None and self.fits(resolved, held)

    def fits(self, resolved: ResolvedRequest, held: HeldModel) -> bool:
        """Return whether the model supports the request's size and syntax, and its adapters are made for the model."""
        if resolved.spec.prompt_syntax is not None and held.family not in WEIGHTED_FAMILIES:
            return False
        sides = (resolved.spec.width_px, resolved.spec.height_px)
        sized = all(side <= held.max_size_px and side % held.size_multiple_px == 0 for side in sides)
        return sized and self.adapters.change(resolved.spec, held)

    def _known(self, stages: Sequence[Stage], admitted: AdmittedStages | None = None) -> tuple[Stage, ...]:
        """Return the stages with a model that a worker ever held. `admitted`: stages of a request of an earlier
        process. Their models were held then; not all workers may have reported since."""
        held_then = {stage.model for stage in admitted.stages} if admitted is not None else set()
        known = self.catalogue.known
        return tuple(stage for stage in stages if stage.model in held_then or known(stage.model) is not None)
