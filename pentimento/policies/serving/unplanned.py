"""Which models are left out of every plan, and why: nobody says what they cost."""

from pentimento.domain.fleet import UnplannedModel
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.inputs import PlanInput


def unplanned_models(context: PlanInput) -> tuple[UnplannedModel, ...]:
    """Return the models that workers could hold and that have no profile on the workers' kind of device, ordered by
    name and device. No allocator that plans by profiles gives them to anybody."""
    profiled = {(profile.model, profile.device) for profile in context.profiles}
    there = {(model, worker.device) for worker in context.workers() for model in worker.models}
    lacking = sorted(pair for pair in there if not profiled & {pair, (pair[0], "")})
    return tuple(UnplannedModel(model, device, Reason.PROFILE_MISSING) for model, device in lacking)
