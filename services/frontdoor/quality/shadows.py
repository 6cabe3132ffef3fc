"""Generate a sample of hits again from noise, and of misses from the cache; compare them, and report to the gateway.

Such a run, a shadow, is no request: it is not admitted, queued, journalled, billed, cached or known to the dataplane.
One runs at a time. It begins while its worker is idle, and stops as soon as a request arrives; or it is paid for by a
share of the images' device seconds, and runs among the requests.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane import Dataplane
from pentimento.dataplane.credits import is_eligible
from pentimento.dataplane.demand_report import StartCounts
from pentimento.domain.clock import Clock
from pentimento.domain.demand import kept_share
from pentimento.domain.errors import NotFound, PentimentoError, ResourceExhausted
from pentimento.domain.execution import AttemptResult
from pentimento.domain.generation import Provenance
from pentimento.domain.reasons import Reason
from pentimento.policies.shadow_painting import (
    IdleWorker,
    ShadowBudget,
    SuiteLoad,
    busy_worker,
    is_sampled,
    shadow_worker,
)
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.journal.records import JournalledRequest
from services.frontdoor.metrics import SHADOW_SECONDS, SHADOWS
from services.frontdoor.objects.results import Results
from services.frontdoor.quality.comparison import KeptPairs, score
from services.frontdoor.quality.shadow_plans import (
    GATEWAY_TIMEOUT_S,
    LightImage,
    ShadowPainter,
    ShadowPlan,
    ShadowRun,
    may_be_compared,
    plan_better,
    plan_shadow,
    plan_trial,
)
from services.frontdoor.requests.pins import recorded_image
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.starts import Trial
from services.frontdoor.settings import FixedLimits, QualitySettings
from services.frontdoor.workers.catalogue import Catalogue

logger = logging.getLogger(__name__)

# Hits that wait to be generated again; beyond it the oldest is dropped.
MOST_HITS = 64
# Tries after which a hit with stopped shadows is dropped.
MOST_TRIES = 5
# Largest budget in seconds that shadows may save up during busy hours.
MOST_SAVED_S = 600.0
# A shadow begins only with a budget of MARGIN times its expected seconds, and of LEAST_S at least.
MARGIN = 1.5
LEAST_S = 1.0
# Longest run of a shadow that is paid for: on a full worker it may wait for a place.
PAID_WITHIN_S = 600.0
_TICK_S = 0.25


@dataclass(frozen=True)
class SampledHit:
    """Hold a waiting hit, accepted light image, or miss with a trial; `plan` is set at its first try."""

    request_id: str
    tenant: str
    light: LightImage | None = None
    trial: Trial | None = None
    tries: int = 0
    plan: ShadowPlan | None = None


@dataclass
class Shadows:
    """Sample hits and run their shadows. Without an embedder of images nothing is sampled, without gateway only light
    images."""

    settings: QualitySettings
    fixed: FixedLimits
    journal: Journal
    results: Results
    catalogue: Catalogue
    dataplane: Dataplane
    clock: Clock
    painter: ShadowPainter
    prompts: PromptEmbedder
    gateway: GatewayClient | None
    counts: StartCounts
    pairs: KeptPairs
    hits: deque[SampledHit] = field(default_factory=lambda: deque(maxlen=MOST_HITS))
    run: ShadowRun | None = None
    # Device seconds of the delivered images, and of shadows.
    image_device_s: float = 0.0
    shadow_device_s: float = 0.0

    def __post_init__(self) -> None:
        now = self.clock.monotonic()
        self._budget = ShadowBudget(self.settings.quality_work_share, MOST_SAVED_S, now)
        self._paid = ShadowBudget(self.settings.quality_work_share, MOST_SAVED_S, now)
        self._busy_at = now
        self._closed = False

    def note(
        self,
        tenant: str,
        request_id: str,
        provenance: Provenance,
        light: LightImage | None = None,
        trial: Trial | None = None,
    ) -> None:
        """Queue a delivered image if it is a sampled hit, accepted light image or miss with a trial that can be
        compared."""
        self.image_device_s += provenance.device_seconds
        self._paid.earn(provenance.device_seconds)
        trial = trial if light is None else None
        # Without the images' embeddings they could not be scored.
        if self._closed or not self.prompts.embeds_images or not may_be_compared(provenance, light, trial):
            return
        if self.gateway is None and light is None:
            return
        if light is not None:
            self.pairs.note(light.cascade, deferred=False)
        share = self.settings.quality_sample_share
        if is_sampled(request_id, share if trial is None or not share else self.fixed.quality_trial_share):
            if len(self.hits) == MOST_HITS:
                SHADOWS.labels("dropped").inc()
            self.hits.append(SampledHit(request_id, tenant, light, trial))

    def make_way(self) -> None:
        """Stop the shadow if it blocks an arriving request."""
        self._busy_at = self.clock.monotonic()
        run = self.run
        if run is None or run.paid:
            return
        run.stop()

    async def left(self, worker_id: str) -> None:
        """Return once no stopped shadow holds a place at the worker."""
        if self.run is not None and self.run.worker_id == worker_id:
            await self.run.left()

    async def run_forever(self) -> None:
        """Run shadows while no request waits, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                if self.hits and not self._closed:
                    await self._safely(self._turn())
        finally:
            self.close()

    def close(self) -> None:
        """Stop the running shadow, and begin no other."""
        self._closed = True
        if self.run is not None:
            self.run.stop()

    async def _safely(self, turn: Coroutine[Any, Any, None]) -> None:
        """Run one turn; a defect costs one hit, not all later ones."""
        try:
            await turn
        except Exception:
            SHADOWS.labels("failed").inc()
            logger.exception("a hit is not generated again because of a defect")

    async def _turn(self) -> None:
        """Generate the first hit again if that is possible now, else move it to the back."""
        if self._load("").waiting_count:
            self._busy_at = self.clock.monotonic()
        is_quiet = self._load("").quiet_s >= self.fixed.quality_quiet_s
        if not (is_quiet and self._budget.left_s(self.clock.monotonic())) and self._paid.earn(0.0) <= 0.0:
            return
        hit = self.hits.popleft()
        try:
            hit = hit if hit.plan is not None else replace(hit, plan=await self._plan(hit))
            kept = await self._try(hit)
        except PentimentoError as error:
            kept = None
            outcome = "gone" if isinstance(error, NotFound) else "failed"
            SHADOWS.labels(outcome).inc()
            logger.info("a hit is not generated again", extra={"reason": error.reason})
        if kept is not None and len(self.hits) < MOST_HITS:
            self.hits.append(kept)

    async def _plan(self, hit: SampledHit) -> ShadowPlan:
        served = recorded_image(await self._record(hit.request_id, hit.tenant))
        if hit.light is not None:
            return plan_better(hit.tenant, served, hit.light, self.catalogue)
        if hit.trial is not None:
            return plan_trial(hit.tenant, served, hit.trial, self.catalogue)
        assert self.gateway is not None
        return await plan_shadow(hit.tenant, served, self.gateway, self.catalogue)

    async def _record(self, request_id: str, tenant: str) -> JournalledRequest:
        record = await asyncio.wrap_future(self.journal.get(request_id, tenant))
        if record is None:
            raise NotFound("UNKNOWN_REQUEST", "the hit is no longer known")
        return record

    async def _try(self, hit: SampledHit) -> SampledHit | None:
        """Return the hit if it must wait, None if it is finished."""
        plan = hit.plan
        assert plan is not None
        load, left_s = self._load(plan.held.model_digest), self._budget.left_s(self.clock.monotonic())
        worker_id = shadow_worker(load, self.fixed.quality_quiet_s)
        least_s = min(max(plan.expected_s * MARGIN, LEAST_S), MOST_SAVED_S / 2)
        if worker_id is not None and left_s >= least_s:
            return await self._paint(hit, plan, worker_id, left_s, self._budget)
        worker_id = busy_worker(load)
        if worker_id is None or self._paid.earn(0.0) < plan.expected_s:
            return hit
        return await self._paint(hit, plan, worker_id, PAID_WITHIN_S, self._paid)

    async def _paint(
        self, hit: SampledHit, plan: ShadowPlan, worker_id: str, left_s: float, budget: ShadowBudget
    ) -> SampledHit | None:
        token, paid = self.dataplane.state.first_token, budget is self._paid
        run = self.run = self.painter.begin(worker_id, plan.tenant, token, paid=paid)
        began_at, result = self.clock.monotonic(), None
        watch = asyncio.ensure_future(self._watch(run, plan.held.model_digest))
        try:
            result = await self.painter.paint(run, plan, left_s)
        except ResourceExhausted as error:
            if error.reason in (Reason.DEVICE_OUT_OF_MEMORY, Reason.MESSAGE_TOO_LARGE):
                raise
            return hit
        except (PentimentoError, TimeoutError) as error:
            if isinstance(error, PentimentoError) and not run.stopped:
                # The worker itself failed: another try would fail again.
                raise
            SHADOWS.labels("stopped").inc()
            return replace(hit, tries=hit.tries + 1) if hit.tries + 1 < MOST_TRIES else None
        finally:
            watch.cancel()
            self.run = None
            self._spend(budget, self.clock.monotonic() - began_at, result)
        if plan.trial is not None and not result.steps_saved:
            raise NotFound("START_GONE", "the cached start could not be read")
        await self._compare(plan, result.image)
        return None

    def _spend(self, budget: ShadowBudget, took_s: float, result: AttemptResult | None) -> None:
        """Charge a shadow to its budget. One among requests took a part of its device only: what it reports."""
        device_s = result.device_seconds if result is not None else took_s
        budget.spend(device_s if budget is self._paid and result is not None else took_s)
        self.shadow_device_s += device_s
        SHADOW_SECONDS.inc(took_s)

    async def _watch(self, run: ShadowRun, model_digest: str) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            workers = {worker.worker_id: worker for worker in self._load(model_digest).workers}
            if run.worker_id not in workers or not workers[run.worker_id].eligible:
                run.stop()

    async def _compare(self, plan: ShadowPlan, scratch: bytes) -> None:
        texts, pictures = self.prompts.texts, self.prompts.images
        assert texts is not None and pictures is not None
        served = await self.results.load(await self._record(plan.provenance.request_id, plan.tenant))
        images = (served.image, scratch) if plan.trial is None else (scratch, served.image)
        scores = await score(pictures, plan.tenant, plan.spec.plain_prompt, *images)
        share = kept_share(scores.quality, scores.scratch_quality)
        if plan.light is not None:
            if share is not None:
                self.counts.count_compared(plan.light.pool, plan.light.confidence, share)
            SHADOWS.labels("not_counted" if share is None else "counted").inc()
            digests = plan.provenance.model_digest, plan.held.model_digest
            pair = scores.pair(plan.light.cascade, digests, plan.light.confidence, images, deferred=False)
            await self.pairs.keep(plan.tenant, pair)
            return
        if share is not None and plan.trial is None:
            self.counts.count_hit(plan.provenance.spec.model, share)
        assert self.gateway is not None
        # A latent was found by the encoder of texts.
        found_by = scores.prompt.encoder_digest if plan.is_image_hit else texts.encoder_digest
        seen = plan.compared_hit(found_by, scores.quality, scores.scratch_quality)
        counted = await self.gateway.report_quality(seen, GATEWAY_TIMEOUT_S)
        SHADOWS.labels("counted" if counted else "not_counted").inc()

    def _load(self, model_digest: str) -> SuiteLoad:
        state = self.dataplane.state
        pools = tuple(state.pools.values())
        return SuiteLoad(
            waiting_count=sum(pool.waiting_count for pool in pools),
            running_count=sum(pool.running_count for pool in pools),
            quiet_s=self.clock.monotonic() - self._busy_at,
            workers=tuple(
                IdleWorker(
                    worker.worker_id,
                    len(worker.in_flight) + len(worker.abandoned),
                    worker.credit_count,
                    is_eligible(state, worker),
                )
                for worker in state.workers.values()
                if worker.holds(model_digest)
            ),
        )
