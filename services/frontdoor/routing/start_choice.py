"""Choose a request's model and start among its pools, with one lookup for all models."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pentimento.dataplane.predictions import service_s
from pentimento.dataplane.thinning import device_s, is_shorter_from_noise
from pentimento.domain.cache import CacheScope, CandidateStart, LookupAnswer, LookupCandidate
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.fleet import HeldModel, PoolPlan
from pentimento.domain.generation import WITHOUT_REUSE, FromImage, FromLatent, FromNoise, Route, Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.plan.entry import (
    FoundStart,
    Stage,
    StartCandidate,
    choose_start,
    start_candidates,
    start_lanes,
)
from pentimento.policies.thinning import ThinningOffer
from services.frontdoor.parts import FrontdoorParts
from services.frontdoor.routing.cache_writes import Note, bounded
from services.frontdoor.routing.starts import (
    PoolOption,
    Trial,
    as_painted_by,
    as_started_by,
    fits,
    kind_of,
    repeat_key_of,
    scope_of,
    steps_saved,
    work_left,
)
from services.frontdoor.routing.step_rules import mode_of

FROM_NOISE = FromNoise()
# Seconds that a request waits for a lookup, times the wait factor.
LOOKUP_S = 0.06


@dataclass(frozen=True)
class Asker:
    """Describe a tenant's request at the stage that needs a start. `draw` is the request's, for the shares of plans.
    `last_model` generates the request from noise, after all stages before it; refined images keep a share of its
    quality. `stays`: the request was deferred to that stage and must run there. `left_out`: why the lookup is skipped;
    empty if it is made. `noise_s`: device seconds of its image from noise, None if unknown."""

    tenant: str
    resolved: ResolvedRequest
    stage: Stage
    draw: float
    last_model: str
    stays: bool = False
    left_out: str = ""
    noise_s: float | None = None


@dataclass(frozen=True)
class Asked:
    """Hold a candidate of a lookup, and the request in its model's terms."""

    candidate: StartCandidate
    held: HeldModel
    resolved: ResolvedRequest
    lora_patch_step: int
    pipelined_from_step: int

    def scope(self, tenant: str) -> CacheScope:
        return scope_of(tenant, self.resolved, self.held, self.lora_patch_step, self.pipelined_from_step)


async def decide_route(
    parts: FrontdoorParts, asker: Asker, held: HeldModel, embedding: PromptEmbedding | None, note: Note
) -> tuple[PoolOption, ...]:
    """Return the pools that may run a request at `asker.stage`, with model `held`, under the present plan: first the
    pool where it waits, then the pools that take it while they are idle. Raises nothing."""
    plan = parts.dataplane.state.index
    planned = () if asker.stays else plan.pools
    pools = tuple(pool for pool in planned if _can_paint(parts, asker, pool))
    candidates = start_candidates(pools, asker.stage, asker.draw)
    asked = tuple(_ask(parts, asker.resolved, candidate, held) for candidate in candidates)
    answer = await _look_up(parts, asker, asked, embedding, note)
    starts = [_or_noise(parts, one, found) for one, found in zip(asked, answer.starts, strict=True)]
    number = choose_start([_found(parts, one, found) for one, found in zip(asked, starts, strict=True)])
    found, chosen = starts[number], asked[number]
    route = Route(
        route_id=new_route_id(),
        start=found.start,
        model=chosen.held.model,
        model_digest=chosen.held.model_digest,
        lora_patch_step=chosen.lora_patch_step,
        controlnet_mode=mode_of(chosen.resolved.spec, chosen.pipelined_from_step),
        pipelined_from_step=chosen.pipelined_from_step,
        plan_version=plan.version,
        reason=found.reason,
    )
    trial = _trial(asker.draw, asked, starts, chosen.held) if isinstance(found.start, FromNoise) else None
    entered = PoolOption(chosen.candidate.pool, chosen.held, chosen.resolved, route, trial)
    lanes = start_lanes(pools, kind_of(found.start), chosen.candidate)
    others = (_lane(parts, asker, entered, pool, held) for pool in lanes)
    return (entered, *(option for option in others if option is not None))


def new_route_id() -> str:
    return secrets.token_hex(8)


async def _look_up(
    parts: FrontdoorParts, asker: Asker, asked: Sequence[Asked], embedding: PromptEmbedding | None, note: Note
) -> LookupAnswer:
    if asker.resolved.spec.scheduler in WITHOUT_REUSE:
        return _not_asked(asked, f"nothing is reused with scheduler {asker.resolved.spec.scheduler.value}")
    if not asker.resolved.cacheable:
        return _not_asked(asked, "the cache was not used")
    if asker.left_out:
        return _not_asked(asked, asker.left_out)
    if parts.gateway is None or embedding is None:
        return _not_asked(asked, "the cache could not be used")
    timeout_s = LOOKUP_S * parts.wait_factor
    last = parts.catalogue.known(asker.last_model)
    reference = last.model_digest if last is not None else ""
    candidates = [
        LookupCandidate(one.scope(asker.tenant), one.candidate.latents, one.candidate.images, reference)
        for one in asked
    ]
    quality, repeat_key = asker.resolved.quality, repeat_key_of(asker.resolved.spec)
    given = (quality, timeout_s, repeat_key, asker.noise_s, embedding.image)
    lookup = parts.gateway.lookup(candidates, embedding.text, *given)
    answer = await bounded("gateway", timeout_s, lookup, note)
    if answer is None or len(answer.starts) != len(asked):
        return _not_asked(asked, "the cache did not answer")
    return answer


def _not_asked(asked: Sequence[Asked], why: str) -> LookupAnswer:
    return LookupAnswer(tuple(CandidateStart(FromNoise(), why) for _ in asked), search_skipped=True)


def _can_paint(parts: FrontdoorParts, asker: Asker, pool: PoolPlan) -> bool:
    """Return whether the tenant may use the pool, and its model was ever held and supports size and adapters; True for
    the request's own stage."""
    if pool.pool == asker.stage.pool:
        return True
    held = parts.catalogue.known(pool.model)
    is_allowed = parts.tenants.quota_of(asker.tenant).allows(pool.pool)
    return is_allowed and held is not None and fits(asker.resolved, held, parts.adapters)


def _ask(parts: FrontdoorParts, asked: ResolvedRequest, candidate: StartCandidate, own: HeldModel) -> Asked:
    held = _held(parts, candidate.model, own)
    resolved = as_painted_by(asked, held)
    patch_step = parts.adapters.lora_patch_step(resolved.spec, held)
    pipelined_from = parts.pipelining.from_step(resolved.spec, held.model_digest)
    return Asked(candidate, held, resolved, patch_step, pipelined_from)


def _held(parts: FrontdoorParts, model: str, own: HeldModel) -> HeldModel:
    return own if model == own.model else parts.catalogue.known(model) or own


def expected_thinning(
    parts: FrontdoorParts, resolved: ResolvedRequest, held: HeldModel, start: Start = FROM_NOISE
) -> ThinningOffer:
    """Return the steps that may be skipped in a request with that start, before its route is decided."""
    route = Route("", start, held.model, held.model_digest)
    patch_step = parts.adapters.lora_patch_step(resolved.spec, held)
    pipelined_from = parts.pipelining.from_step(resolved.spec, held.model_digest)
    return parts.thinning.offer(
        resolved, replace(route, lora_patch_step=patch_step, pipelined_from_step=pipelined_from)
    )


def expected_device_s(
    parts: FrontdoorParts, pool: str, resolved: ResolvedRequest, held: HeldModel, start: Start = FROM_NOISE
) -> float | None:
    """Return the device seconds of a request with that start in the pool now; None if no speed is known."""
    offer = expected_thinning(parts, resolved, held, start)
    return device_s(parts.dataplane.state, pool, work_left(resolved, start), offer)


def _or_noise(parts: FrontdoorParts, asked: Asked, found: CandidateStart) -> CandidateStart:
    """Return the start found; noise instead of a latent that leaves more steps than a thinned run from noise."""
    if not isinstance(found.start, FromLatent):
        return found
    noise, hit = (expected_thinning(parts, asked.resolved, asked.held, start) for start in (FROM_NOISE, found.start))
    whole = asked.resolved.spec.num_inference_steps - steps_saved(found.start)
    left = hit.least_count if hit.options else whole
    if not is_shorter_from_noise(parts.dataplane.state, asked.candidate.pool, noise, left):
        return found
    why = f"from noise: thinned it takes {noise.least_count} steps, from the nearest latent {left}"
    return replace(found, start=FROM_NOISE, reason=why)


def _found(parts: FrontdoorParts, asked: Asked, found: CandidateStart) -> FoundStart:
    share = steps_saved(found.start) / asked.resolved.spec.num_inference_steps
    seconds = service_s(parts.dataplane.state, asked.candidate.pool, work_left(asked.resolved, found.start))
    return FoundStart(kind_of(found.start), share, seconds, asked.candidate.stands_in)


def _trial(draw: float, asked: Sequence[Asked], starts: Sequence[CandidateStart], held: HeldModel) -> Trial | None:
    """Draw one of the candidates' trials that an image from noise by model `held` can be compared with."""
    trials = [
        Trial(found.trial, one.held.model_digest, one.resolved.spec.num_inference_steps)
        for one, found in zip(asked, starts, strict=True)
        if isinstance(found.trial, FromLatent | FromImage)
    ]
    fitting = [trial for trial in trials if trial.reference_digest == held.model_digest]
    return fitting[min(int(draw * len(fitting)), len(fitting) - 1)] if fitting else None


def _lane(
    parts: FrontdoorParts, asker: Asker, entered: PoolOption, pool: PoolPlan, own: HeldModel
) -> PoolOption | None:
    held = _held(parts, pool.model, own)
    option = as_started_by(entered, pool.pool, as_painted_by(asker.resolved, held), held)
    if option is None:
        return None
    # With another step count, LoRAs may have to take effect at another step.
    spec = option.resolved.spec
    pipelined_from = parts.pipelining.from_step(spec, held.model_digest)
    route = replace(
        option.route,
        lora_patch_step=parts.adapters.lora_patch_step(spec, held),
        controlnet_mode=mode_of(spec, pipelined_from),
        pipelined_from_step=pipelined_from,
    )
    return replace(option, route=route)
