"""What attempts may put into the cache: reserved when they start, committed or given back when their fate is known; and
what they found wrong in it."""

import asyncio
from dataclasses import dataclass

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane.effects import CommitCacheEntries, ReleaseGrant
from pentimento.dataplane.events import AttemptKey
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.generation import CacheGrant, FromImage, FromLatent, Route
from pentimento.domain.image_request import CacheMode
from pentimento.policies.cache_selection import SelectionRules, capture_steps
from services.frontdoor.requests.jobs import Execution, Job, Jobs
from services.frontdoor.routing.router import CacheTimeouts, ancestor_depth, bounded, scope_of, steps_saved

# Committing is off the critical path; this only bounds how long a drain may wait for it.
COMMIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class PendingEntries:
    """A grant, and what the gateway needs to know to make its entries findable."""

    scope: CacheScope
    embedding: Embedding
    route: Route
    execution: Execution
    grant: CacheGrant


class CacheWrites:
    """Grants of the attempts under way. Nothing here fails or delays a picture beyond `CacheTimeouts.reserve_s`."""

    def __init__(
        self, gateway: GatewayClient | None, jobs: Jobs, timeouts: CacheTimeouts, rules: SelectionRules
    ) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._timeouts = timeouts
        self._rules = rules
        self._pending: dict[AttemptKey, PendingEntries] = {}

    async def reserve(self, job: Job, execution: Execution) -> CacheGrant | None:
        """Changes state: a grant for the attempt, or None where the cache takes nothing from it."""
        embedding = job.embedding.result() if job.embedding is not None and job.embedding.done() else None
        resolved, held, route = execution.resolved, execution.held, execution.route
        if self._gateway is None or embedding is None or route is None or held is None:
            return None
        if resolved.cache is CacheMode.READ:
            return None
        scope, attempt = scope_of(job.tenant, resolved, held), execution.attempt
        steps = capturable_steps(resolved.spec.num_inference_steps, route, self._rules)
        timeout_s = self._timeouts.reserve_s
        call = self._gateway.reserve(scope, attempt, steps, True, timeout_s)
        grant = await bounded("reserve", timeout_s, call, lambda sentence: None)
        if grant is not None:
            key = (attempt.request_id, attempt.fencing_token)
            self._pending[key] = PendingEntries(scope, embedding, route, execution, grant)
        return grant

    def commit(self, effect: CommitCacheEntries) -> None:
        """The attempt was accepted: what it captured may be found from now on."""
        pending = self._pending.pop((effect.request_id, effect.fencing_token), None)
        if pending is not None:
            self._jobs.spawn_background(self._commit(pending), effect)

    def release(self, effect: ReleaseGrant) -> None:
        """The attempt failed or was fenced off: its grant goes back."""
        pending = self._pending.pop((effect.request_id, effect.fencing_token), None)
        if pending is not None:
            self._jobs.spawn_background(self._release(pending.grant), effect)

    def report_bad_donor(self, route: Route, reason: str) -> None:
        """A worker could not read what the route starts from: the gateway heals the entry."""
        match route.start:
            case FromLatent(latent=reference, donor=donor) | FromImage(image=reference, donor=donor):
                self._jobs.spawn_background(self._report(donor.entry_id, reference.key, reason), "report bad object")

    async def _report(self, entry_id: str, key: str, reason: str) -> None:
        assert self._gateway is not None
        call = self._gateway.report_bad_object(entry_id, key, reason, COMMIT_TIMEOUT_S)
        await bounded("report", COMMIT_TIMEOUT_S, call, lambda sentence: None)

    async def _commit(self, pending: PendingEntries) -> None:
        assert self._gateway is not None
        result = pending.execution.result
        captured = result.captured if result is not None else None
        if captured is None or not (captured.latents or captured.image):
            await self._release(pending.grant)
            return
        call = self._gateway.commit(
            pending.scope,
            pending.execution.attempt,
            captured,
            pending.embedding,
            ancestor_depth=ancestor_depth(pending.route.start),
            timeout_s=COMMIT_TIMEOUT_S,
        )
        await bounded("commit", COMMIT_TIMEOUT_S, call, lambda sentence: None)

    async def _release(self, grant: CacheGrant) -> None:
        assert self._gateway is not None
        call = self._gateway.release(grant.grant_id, COMMIT_TIMEOUT_S)
        await bounded("release", COMMIT_TIMEOUT_S, asyncio.ensure_future(call), lambda sentence: None)


def capturable_steps(step_count: int, route: Route, rules: SelectionRules) -> tuple[int, ...]:
    """The K worth keeping that the run passes through: those after its start."""
    first = steps_saved(route.start)
    return tuple(step for step in capture_steps(step_count, rules) if step > first)
