"""Perform the effect that scores a light image. It is always answered, also while services are down."""

from pentimento.dataplane.effects import Score
from pentimento.dataplane.events import Scored
from services.frontdoor.metrics import UNSCORED
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.requests.jobs import Job
from services.frontdoor.routing.routes import prompt_of
from services.frontdoor.routing.stages import discriminator_of

# Seconds until the next discriminator is called, times the wait factor.
SCORE_S = 1.0


def score(parts: FrontdoorParts, effect: Score) -> None:
    """Answer Score with Scored."""
    job = parts.jobs.get(effect.request_id)
    parts.jobs.spawn(job, _score(parts, job, effect.fencing_token), effect)


async def _score(parts: FrontdoorParts, job: Job, token: int) -> None:
    execution = job.executions[token]
    result = execution.result
    assert result is not None
    began_at = parts.clock.monotonic()
    cascade, digest = discriminator_of(job.stages, execution.stage), job.stages[execution.stage].discriminator_digest
    prompt = await prompt_of(parts, job)
    key, timeout_s = (execution.attempt.request_id, token), SCORE_S * parts.wait_factor
    confidence = await parts.discriminators.score(cascade, key, result.image, prompt, timeout_s, digest)
    job.time_stage("score", began_at, parts.clock.monotonic())
    execution.confidence = confidence
    if confidence is None:
        UNSCORED.inc()
    parts.submit(Scored(execution.attempt.request_id, token, confidence))
