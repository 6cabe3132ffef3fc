"""Count the share of the heavy model's quality that the light images of deferred requests keep."""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pentimento.clients.embedders import Embedders
from pentimento.dataplane.demand_report import StartCounts
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import FromNoise
from pentimento.domain.kept_quality import kept_share
from pentimento.policies.shadow_painting import is_sampled
from services.frontdoor.metrics import COMPARED_IMAGES
from services.frontdoor.quality.comparison import score
from services.frontdoor.quality.kept_pairs import KeptPairs, LightRecord
from services.frontdoor.quality.shadow_plans import LightImage
from services.frontdoor.requests.jobs import Execution, Job
from services.frontdoor.routing.stages import cascade_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deferrals:
    """Compare a share of the deferred requests in the background; none without an embedder of images."""

    sample_share: float
    embedder: Embedders | None
    counts: StartCounts
    pairs: KeptPairs
    spawn: Callable[[Coroutine[Any, Any, None]], object]

    def note(self, job: Job, delivered: Execution) -> None:
        """Compare the deferred light image with the delivered one, if it exists and is sampled."""
        if self.embedder is None or not self.embedder.embeds_images or delivered.result is None:
            return
        light = deferred_execution(job, delivered)
        if light is None:
            return
        self.pairs.note(_cascade_of(light, delivered), deferred=True)
        if is_sampled(job.request.request_id, self.sample_share):
            self.spawn(self._compare(self.embedder, job, light, delivered))

    async def _compare(self, embedder: Embedders, job: Job, light: Execution, delivered: Execution) -> None:
        assert light.result is not None and light.confidence is not None and delivered.result is not None
        images = light.result.image, delivered.result.image
        try:
            prompt = light.resolved.spec.plain_prompt
            scores = await score(embedder, job.request.tenant, prompt, *images)
        except PentimentoError as error:
            COMPARED_IMAGES.labels("failed").inc()
            logger.info("a deferred image is not compared", extra={"reason": error.reason})
            return
        kept = kept_share(scores.quality, scores.scratch_quality)
        COMPARED_IMAGES.labels("not_counted" if kept is None else "counted").inc()
        if kept is not None:
            self.counts.count_compared(job.stages[light.stage].pool, light.confidence, kept)
        record = LightRecord(_cascade_of(light, delivered), light.result.model_digest, light.confidence, deferred=True)
        await self.pairs.keep(job.request.tenant, record, delivered.result.model_digest, scores, images)


def _cascade_of(light: Execution, delivered: Execution) -> str:
    return cascade_name((light.resolved.spec.model, delivered.resolved.spec.model))


def accepted_light(job: Job, delivered: Execution) -> LightImage | None:
    """Return pool, confidence and next model of a delivered image that a discriminator scored; None for any other."""
    following = delivered.stage + 1
    if delivered.confidence is None or following >= len(job.stages):
        return None
    stage = job.stages[delivered.stage]
    return LightImage(stage.pool, delivered.confidence, delivered.resolved.spec.model, job.stages[following].model)


def deferred_execution(job: Job, delivered: Execution) -> Execution | None:
    """Return the last scored attempt of an earlier stage, if its image ran all steps from noise."""
    found = [
        one
        for one in job.executions.values()
        if one.stage < delivered.stage and one.confidence is not None and one.result is not None
    ]
    light = found[-1] if found else None
    if light is None or not isinstance(light.route.start, FromNoise):
        return None
    if light.route.thinned_steps or light.route.full_steps:
        return None
    return light
