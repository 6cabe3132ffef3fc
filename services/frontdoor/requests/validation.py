"""Validate calls for images before anything is promised: fields, models, prompts, input images and pins."""

import random
import secrets
from dataclasses import dataclass, replace

from pentimento.domain.image_request import ImageRequest, ReplayRequest
from pentimento.domain.replay import take_inputs
from services.frontdoor.identity import Identity
from services.frontdoor.objects.inputs import checked_digests
from services.frontdoor.requests.arrivals import SEED_BITS, ValidatedRequest
from services.frontdoor.requests.pins import Pins, recorded_image, resolve_replay
from services.frontdoor.requests.resolution import resolve
from services.frontdoor.requests.safety import SafetyGate
from services.frontdoor.requests.selections import with_served_adapters
from services.frontdoor.requests.tenant_requests import TenantRequests
from services.frontdoor.routing.stages import StageChoice
from services.frontdoor.settings import RequestLimits
from services.frontdoor.workers.catalogue import MODEL_WAIT_S


@dataclass(frozen=True)
class Validation:
    """Validate the requests of tenants, against the models and adapters of `stages`."""

    identity: Identity
    stages: StageChoice
    safety: SafetyGate
    pins: Pins
    tenants: TenantRequests
    limits: RequestLimits

    async def image(self, tenant: str, request: ImageRequest, preview_interval_steps: int) -> ValidatedRequest:
        """Return the validated request with its input images' digests. Wait for a planned model that no worker has."""
        self.identity.require_active()
        deadline_s = MODEL_WAIT_S if request.deadline_ms is None else request.deadline_ms / 1000.0
        await self.stages.catalogue.wait_until_loaded(request.model, deadline_s)
        # A preview would be seen before the image's verdict.
        preview_interval_steps *= not self.safety.checks_images
        validated = self.check(tenant, request, preview_interval_steps)
        spec = validated.resolved.spec
        resolved = replace(validated.resolved, prompt_verdict=await self.safety.check_prompt(spec.prompt))
        if request.pin_ms is not None:
            input_bytes = sum(map(len, take_inputs(spec)[1].values()))
            await self.pins.check_room(tenant, request.pin_ms, input_bytes)
        return replace(validated, resolved=resolved, digests=await checked_digests(spec))

    async def replay(self, tenant: str, request: ReplayRequest, preview_interval_steps: int) -> ValidatedRequest:
        """Validate a replay by the journal's record only; its model generates it, regardless of the plan's other
        models."""
        self.identity.require_active()
        recorded = recorded_image(await self.tenants.record(tenant, request.request_id))
        request = await self.pins.with_kept_inputs(tenant, request)
        model, draw = recorded.provenance.spec.model, random.random()
        stages = self.stages.of_model(tenant, model, draw)
        await self.stages.catalogue.wait_until_loaded(model, MODEL_WAIT_S)
        held = self.stages.catalogue.find(model)
        spec = with_served_adapters(recorded.provenance.spec, self.stages.adapters)
        recorded = replace(recorded, provenance=replace(recorded.provenance, spec=spec))
        preview_interval_steps *= not self.safety.checks_images
        resolved = resolve_replay(request, recorded, held, self.limits, preview_interval_steps)
        return ValidatedRequest(resolved, stages, draw, digests=await checked_digests(resolved.spec))

    def check(self, tenant: str, request: ImageRequest, preview_interval_steps: int = 0) -> ValidatedRequest:
        """Return the validated request, with the stages that can generate an image of its size, in pools that the
        tenant may use. Raises InvalidArgument if no model can, and as `resolve` and `StageChoice.choose`."""
        self.identity.require_active()
        draw = random.random()
        held, stages = self.stages.choose(tenant, request, draw)
        seed, known = secrets.randbits(SEED_BITS), self.stages.adapters
        resolved = resolve(request, held, known, self.limits, seed, preview_interval_steps)
        fitting = self.stages.fitting(stages, resolved)
        if not fitting:
            # The last model's error names the limit.
            resolve(request, self.stages.catalogue.find(stages[-1].model), known, self.limits, seed)
        allowed = self.stages.allowed(tenant, fitting or stages)
        return ValidatedRequest(resolved, allowed, draw, seed_drawn=request.seed is None)
