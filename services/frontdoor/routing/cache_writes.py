"""What attempts may put into the cache: reserved when they start, committed or given back when their fate is known; and
what they found wrong in it."""

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane.effects import CommitCacheEntries, ReleaseGrant
from pentimento.domain.generation import CacheGrant, FromImage, FromLatent, Route
from pentimento.domain.image_request import CacheMode
from pentimento.policies.cache_selection import SelectionRules, capture_steps
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import Execution, Job, PendingEntries
from services.frontdoor.routing.routes import ancestor_depth, bounded, scope_of, steps_saved

# Committing is off the critical path; this only bounds how long a drain may wait for it.
COMMIT_TIMEOUT_S = 5.0
_RULES = SelectionRules()


async def reserve_entries(parts: FrontdoorParts, job: Job, execution: Execution) -> CacheGrant | None:
    """Return a grant for the attempt, or None where the cache takes nothing from it. It fails no picture, and delays
    none beyond `PartTimeouts.reserve_s`."""
    embedding = job.embedding.result() if job.embedding is not None and job.embedding.done() else None
    resolved, held, route = execution.resolved, execution.held, execution.route
    if parts.gateway is None or embedding is None or held is None:
        return None
    if resolved.cache is CacheMode.READ:
        return None
    scope, attempt = scope_of(job.request.tenant, resolved, held), execution.attempt
    steps = capturable_steps(resolved.spec.num_inference_steps, route, _RULES)
    timeout_s = parts.timeouts.reserve_s
    grant = await bounded("reserve", timeout_s, parts.gateway.reserve(scope, attempt, steps, True, timeout_s))
    if grant is not None:
        key = (attempt.request_id, attempt.fencing_token)
        parts.grants[key] = PendingEntries(scope, embedding, execution, grant)
    return grant


def commit_entries(parts: FrontdoorParts, effect: CommitCacheEntries) -> None:
    """The attempt was accepted: make what it captured findable."""
    pending = parts.grants.pop((effect.request_id, effect.fencing_token), None)
    if pending is not None and parts.gateway is not None:
        parts.jobs.spawn_background(_commit(parts.gateway, pending), effect)


def release_grant(parts: FrontdoorParts, effect: ReleaseGrant) -> None:
    """The attempt failed or was fenced off: give its grant back."""
    pending = parts.grants.pop((effect.request_id, effect.fencing_token), None)
    if pending is not None and parts.gateway is not None:
        parts.jobs.spawn_background(_release(parts.gateway, pending.grant), effect)


def report_bad_donor(parts: FrontdoorParts, route: Route, reason: str) -> None:
    """Tell the gateway, which heals the entry, that a worker could not read what the route starts from."""
    match route.start:
        case FromLatent(latent=reference, donor=donor) | FromImage(image=reference, donor=donor):
            if parts.gateway is not None:
                call = parts.gateway.report_bad_object(donor.entry_id, reference.key, reason, COMMIT_TIMEOUT_S)
                parts.jobs.spawn_background(bounded("report", COMMIT_TIMEOUT_S, call), "report bad object")


async def _commit(gateway: GatewayClient, pending: PendingEntries) -> None:
    execution = pending.execution
    captured = execution.result.captured if execution.result is not None else None
    if captured is None or not (captured.latents or captured.image):
        await _release(gateway, pending.grant)
        return
    call = gateway.commit(
        pending.scope,
        execution.attempt,
        captured,
        pending.embedding,
        ancestor_depth=ancestor_depth(execution.route.start),
        timeout_s=COMMIT_TIMEOUT_S,
    )
    await bounded("commit", COMMIT_TIMEOUT_S, call)


async def _release(gateway: GatewayClient, grant: CacheGrant) -> None:
    await bounded("release", COMMIT_TIMEOUT_S, gateway.release(grant.grant_id, COMMIT_TIMEOUT_S))


def capturable_steps(step_count: int, route: Route, rules: SelectionRules) -> tuple[int, ...]:
    """The K worth keeping that the run passes through: those after its start."""
    first = steps_saved(route.start)
    return tuple(step for step in capture_steps(step_count, rules) if step > first)
