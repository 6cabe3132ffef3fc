"""Reserve, commit and release the cache entries of attempts, and report the starts that they used."""

from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane.effects import CommitCacheEntries, ReleaseGrant
from pentimento.dataplane.events import AttemptKey
from pentimento.domain.cache import CacheScope
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import CacheGrant, CapturedEntries, FromImage, FromLatent, Route, Start
from pentimento.domain.image_request import CacheMode
from pentimento.domain.replay import ancestor_of, taken_of
from services.frontdoor.requests.jobs import Execution, Job, Jobs, PendingEntries
from services.frontdoor.routing.bounded_calls import bounded
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.starts import ancestor_depth, kind_of, repeat_key_of, scope_of
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.usage import UsageMeter

# Commits are off the critical path; this only bounds the wait of a drain.
COMMIT_TIMEOUT_S = 5.0
# Seconds that an attempt waits for its grant, times the wait factor.
RESERVE_S = 0.05


@dataclass(frozen=True)
class CacheWriter:
    """Hold what attempts may write to the cache, until it is committed or released. `wait_factor` multiplies the wait
    for a grant."""

    gateway: GatewayClient
    prompts: PromptEmbedder
    jobs: Jobs
    tenants: TenantDirectory
    usage: UsageMeter
    wait_factor: float
    _grants: dict[AttemptKey, PendingEntries] = field(default_factory=dict, init=False)

    async def reserve(self, job: Job, execution: Execution) -> CacheGrant | None:
        """Return a grant for the attempt; None if the cache takes nothing from it. It fails no request, and delays none
        beyond `RESERVE_S`."""
        embedding = job.embedding.result() if job.embedding is not None and job.embedding.done() else None
        resolved, held, route = execution.resolved, execution.held, execution.route
        if embedding is None or held is None or not job.asks_cache:
            return None
        if resolved.cache is CacheMode.READ or not resolved.cacheable:
            return None
        attempt, tenant = execution.attempt, job.request.tenant
        scope, timeout_s = scope_of(tenant, resolved, held, route), RESERVE_S * self.wait_factor
        call = self.gateway.reserve(
            scope,
            attempt,
            route.start.saved_steps,
            ancestor_depth(route.start),
            timeout_s,
            keeps_image=self.prompts.embeds_images,
            start_kind=kind_of(route.start),
            light=execution.stage + 1 < len(job.stages),
            tenant_cache_bytes=self.tenants.quota_of(tenant).cache_bytes,
        )
        grant = await bounded("reserve", timeout_s, call)
        if grant is not None:
            key = (attempt.request_id, attempt.fencing_token)
            self._grants[key] = PendingEntries(scope, embedding, execution, grant)
        return grant

    def commit_entries(self, effect: CommitCacheEntries) -> None:
        """Commit the entries of an accepted attempt, so that lookups find them."""
        pending = self._grants.pop((effect.request_id, effect.fencing_token), None)
        if pending is not None:
            self.jobs.spawn_background(self._commit(pending), effect)

    def release_grant(self, effect: ReleaseGrant) -> None:
        """Release the grant of an attempt that failed or was fenced off."""
        pending = self._grants.pop((effect.request_id, effect.fencing_token), None)
        if pending is not None:
            self.jobs.spawn_background(self._release(pending.grant), effect)

    def report_bad_donor(self, route: Route, reason: str) -> None:
        """Report to the gateway, which repairs the entry, that a worker could not read the route's start."""
        match route.start:
            case FromLatent(latent=reference, donor=donor) | FromImage(image=reference, donor=donor):
                call = self.gateway.report_bad_object(donor.entry_id, reference.key, reason, COMMIT_TIMEOUT_S)
                self._report(call, "report bad object")

    def report_start(self, route: Route, taken: bool) -> None:
        """Report to the gateway whether a worker could use the route's start, if that comes from the cache."""
        reference = ancestor_of(route.start) if not route.replay_of else None
        if reference is not None:
            from_image = isinstance(route.start, FromImage)
            key, timeout_s = reference.key, COMMIT_TIMEOUT_S
            call = self.gateway.report_start(key, from_image=from_image, taken=taken, timeout_s=timeout_s)
            self._report(call, "report start")

    def _report(self, call: Awaitable[None], name: str) -> None:
        self.jobs.spawn_background(bounded("report", COMMIT_TIMEOUT_S, call), name)

    async def _commit(self, pending: PendingEntries) -> None:
        result, tenant = pending.execution.result, pending.scope.tenant
        captured = _keepable(result.captured, pending.scope) if result is not None else None
        picture = None
        if result is not None and captured is not None and captured.image is not None:
            # The client has its answer.
            picture = await self.prompts.embed_image(tenant, result.image, COMMIT_TIMEOUT_S)
            # Without its embedding no lookup would find the image.
            captured = captured if picture is not None else replace(captured, image=None)
        if captured is None or not (captured.latents or captured.image):
            await self._release(pending.grant)
            return
        if await bounded("commit", COMMIT_TIMEOUT_S, self._committed(pending, captured, picture)) is not None:
            self.usage.cached(tenant, _size_bytes(captured))

    async def _committed(self, pending: PendingEntries, captured: CapturedEntries, picture: Embedding | None) -> str:
        """Return the entry's id. If the image alone is rejected, as one of another encoder is, the latents are kept.
        Rejected entries are released; they would stay stored, and count, until the grant ends."""
        try:
            return await self.gateway.commit(
                pending.scope,
                pending.execution.attempt,
                captured,
                pending.embedding.text,
                picture,
                ancestor_depth=ancestor_depth(_start_taken(pending.execution)),
                timeout_s=COMMIT_TIMEOUT_S,
                repeat_key=repeat_key_of(pending.execution.resolved.spec),
            )
        except (InvalidArgument, FailedPrecondition) as error:
            if picture is not None and captured.latents and isinstance(error, InvalidArgument):
                return await self._committed(pending, replace(captured, image=None), None)
            await self._release(pending.grant)
            raise

    async def _release(self, grant: CacheGrant) -> None:
        await bounded("release", COMMIT_TIMEOUT_S, self.gateway.release(grant.grant_id, COMMIT_TIMEOUT_S))


def _start_taken(execution: Execution) -> Start:
    saved = execution.result.steps_saved if execution.result is not None else 0
    return taken_of(execution.route.start, saved)


def _keepable(captured: CapturedEntries, scope: CacheScope) -> CapturedEntries:
    """Return the entries that may be committed. Requests without LoRAs find the latents up to the step at which LoRAs
    take effect: such a latent is kept only if none had taken effect before."""
    free_until = scope.adapters_from_step if scope.adapters_digest else 0
    latents = (latent for latent in captured.latents if latent.adapter_free or latent.resume_step > free_until)
    return replace(captured, latents=tuple(latents))


def _size_bytes(captured: CapturedEntries) -> int:
    image_bytes = captured.image.size_bytes if captured.image is not None else 0
    return image_bytes + sum(latent.object.size_bytes for latent in captured.latents)
