"""Plan how a sampled hit or miss is generated again, by its journal record and its threshold's promise."""

from dataclasses import dataclass, replace

from pentimento.clients.gateway import GatewayClient
from pentimento.domain.errors import NotFound
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import Donor, FromImage, FromLatent, FromNoise, GenerationSpec, Provenance, Start
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.domain.online_quality import ComparedHit
from services.frontdoor.requests.replays import Recorded
from services.frontdoor.routing.stages import as_painted_by, cascade_name
from services.frontdoor.workers.catalogue import Catalogue

GATEWAY_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class LightImage:
    """Describe an accepted image of a cascade's stage: pool, confidence (0..1), its model and the next stage's."""

    pool: str
    confidence: float
    model: str
    better_model: str

    @property
    def cascade(self) -> str:
        return cascade_name((self.model, self.better_model))


@dataclass(frozen=True)
class ShadowPlan:
    """Hold an image's provenance, and the spec that the reference model generates from noise. `expected_s`: device
    seconds of its steps, at the served image's speed. `light`: the accepted light image, None for a hit. `trial`: the
    cached start for the second image of a request from noise."""

    tenant: str
    provenance: Provenance
    format: ImageFormat
    spec: GenerationSpec
    held: HeldModel
    expected_s: float
    light: LightImage | None = None
    trial: FromLatent | None = None

    def compared_hit(self, encoder_digest: str, quality: float, scratch_quality: float) -> ComparedHit:
        """Return the comparison as reported to the gateway."""
        provenance, start = self.provenance, self.trial or self.provenance.route.start
        donor = self.trial.donor if self.trial is not None else donor_of(provenance)
        assert donor is not None
        return ComparedHit(
            request_id=provenance.request_id,
            model_digest=provenance.model_digest,
            reference_model_digest=self.held.model_digest,
            encoder_digest=encoder_digest,
            from_image=isinstance(start, FromImage),
            skipped_steps=_allowed_steps(start),
            step_count=provenance.spec.num_inference_steps,
            similarity=donor.similarity,
            quality=quality,
            scratch_quality=scratch_quality,
        )


def _allowed_steps(start: Start) -> int:
    """Return the K of the threshold that allowed the hit; a renoised start saves fewer steps."""
    match start:
        case FromLatent():
            return start.resume_step
        case FromImage():
            return start.start_step
        case FromNoise():
            return 0


def donor_of(provenance: Provenance) -> Donor | None:
    """Return the cached donor of an image; None for an image from noise, also if its start was unreadable."""
    match provenance.route.start:
        case FromLatent(donor=donor) | FromImage(donor=donor) if provenance.steps_saved:
            return donor
    return None


def may_be_compared(provenance: Provenance, light: LightImage | None = None, trial: FromLatent | None = None) -> bool:
    """Return whether an image is a hit, an accepted light image or one with a trial, that can be generated again and
    that its profile covers: input images are not stored, adapters were not profiled, a replay was counted when it was
    first generated, and the threshold does not account for skipped steps or reused features."""
    spec, route = provenance.spec, provenance.route
    if provenance.inputs or spec.loras or spec.controlnets or spec.image_prompts or route.replay_of:
        return False
    if route.thinned_steps or route.full_steps:
        return False
    return (donor_of(provenance) is None) == (light is not None or trial is not None)


def plan_better(tenant: str, served: Recorded, light: LightImage, catalogue: Catalogue) -> ShadowPlan:
    """Return the plan for the next stage's model to generate an accepted light image's request. Raises NotFound
    MODEL_GONE if no worker has had that model."""
    held = catalogue.known(light.better_model)
    if held is None:
        raise NotFound("MODEL_GONE", "no worker holds the model of the next stage")
    return replace(_plan_of(tenant, served, held), light=light)


def plan_trial(tenant: str, served: Recorded, trial: FromLatent, catalogue: Catalogue) -> ShadowPlan:
    """Return the plan to generate an image from noise again from a cached start. Raises NotFound MODEL_GONE if no
    worker has had its model."""
    held = catalogue.of_digest(served.provenance.model_digest)
    if held is None:
        raise NotFound("MODEL_GONE", "no worker holds the model of the image")
    plan = _plan_of(tenant, served, held)
    left = 1.0 - trial.saved_steps / plan.spec.num_inference_steps
    return replace(plan, trial=trial, expected_s=plan.expected_s * left)


async def plan_shadow(tenant: str, served: Recorded, gateway: GatewayClient, catalogue: Catalogue) -> ShadowPlan:
    """Return the plan to generate a hit again: latent hits by their own model, image hits by their profile's reference.

    Raises NotFound NOT_WATCHED if no table covers such a hit any longer, MODEL_GONE if no worker has had the reference
    model, and the gateway's errors.
    """
    provenance = served.provenance
    start = provenance.route.start
    rows = await gateway.reuse_quality(provenance.model_digest, GATEWAY_TIMEOUT_S)
    found = (row.reference_model_digest for row in rows if row.from_image == isinstance(start, FromImage))
    pair = start.reference_model_digest if isinstance(start, FromImage) else ""
    reference = next((one for one in found if pair in ("", one)), None)
    if reference is None:
        raise NotFound("NOT_WATCHED", "the model has no thresholds of that kind")
    held = catalogue.of_digest(reference)
    if held is None:
        raise NotFound("MODEL_GONE", "no worker holds the model that the hit is compared with")
    return _plan_of(tenant, served, held)


def _plan_of(tenant: str, served: Recorded, held: HeldModel) -> ShadowPlan:
    provenance, spec = served.provenance, _spec_of(served, held)
    full = provenance.device_seconds / max(provenance.steps_run, 1)
    return ShadowPlan(tenant, provenance, served.format, spec, held, full * spec.num_inference_steps)


def _spec_of(served: Recorded, held: HeldModel) -> GenerationSpec:
    resolved = ResolvedRequest(
        spec=served.provenance.spec,
        cache=CacheMode.OFF,
        format=served.format,
        quality=None,
        deadline_ms=0,
        preview_interval_steps=0,
    )
    return replace(as_painted_by(resolved, held).spec, model=held.model)
