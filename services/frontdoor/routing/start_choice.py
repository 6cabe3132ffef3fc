"""Choose a request's model and start among its pools, with one lookup for all models."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pentimento.clients.gateway import GatewayClient
from pentimento.dataplane import Dataplane
from pentimento.dataplane.predictions import service_s
from pentimento.dataplane.thinning import device_s, is_shorter_from_noise
from pentimento.domain.cache import CandidateStart, LookupAnswer, LookupCandidate
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.fleet import HeldModel, PoolPlan
from pentimento.domain.generation import WITHOUT_REUSE, FromImage, FromLatent, FromNoise, Route, Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.plan.entry import (
    NOISE,
    FoundStart,
    Stage,
    StartCandidate,
    choose_start,
    start_candidates,
    start_lanes,
)
from pentimento.policies.worth import Worth
from services.frontdoor.routing.bounded_calls import Note, bounded
from services.frontdoor.routing.stages import StageChoice
from services.frontdoor.routing.starts import (
    PoolOption,
    Trial,
    as_painted_by,
    as_started_by,
    kind_of,
    repeat_key_of,
    scope_of,
    work_left,
)
from services.frontdoor.routing.step_rules import FROM_NOISE, StepRules
from services.frontdoor.workers.catalogue import Catalogue

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


def new_route_id() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True)
class StartChoice:
    """Look up starts in the cache, and choose by them. Without a gateway every request starts from noise. `worth` is
    that of lookups, by tenant; `wait_factor` multiplies the wait for the gateway."""

    dataplane: Dataplane
    gateway: GatewayClient | None
    stages: StageChoice
    catalogue: Catalogue
    rules: StepRules
    worth: Worth
    wait_factor: float

    async def choose(
        self, asker: Asker, held: HeldModel, embedding: PromptEmbedding | None, note: Note
    ) -> tuple[PoolOption, ...]:
        """Return the pools that may run a request at `asker.stage`, with model `held`, under the present plan: first
        the pool where it waits, then the pools that take it while they are idle. Raises nothing."""
        plan = self.dataplane.state.index
        planned = () if asker.stays else plan.pools
        pools = tuple(pool for pool in planned if self._may_run(asker, pool))
        candidates = start_candidates(pools, asker.stage, asker.draw)
        asked = tuple(self._from_noise(asker.resolved, candidate, held) for candidate in candidates)
        answer = await self._look_up(asker, candidates, asked, embedding, note)
        starts = [self._or_noise(one, found) for one, found in zip(asked, answer.starts, strict=True)]
        stands_in = (candidate.stands_in for candidate in candidates)
        number = choose_start([self._found(*one) for one in zip(asked, starts, stands_in, strict=True)])
        found, chosen = starts[number], asked[number]
        route = replace(
            chosen.route, route_id=new_route_id(), start=found.start, plan_version=plan.version, reason=found.reason
        )
        trial = _trial(asker.draw, asked, starts, chosen.held) if isinstance(found.start, FromNoise) else None
        entered = replace(chosen, route=route, trial=trial)
        lanes = start_lanes(pools, kind_of(found.start), candidates[number])
        others = (self._lane(asker.resolved, entered, pool, held) for pool in lanes)
        return (entered, *(option for option in others if option is not None))

    def noise_s(self, resolved: ResolvedRequest, stage: Stage) -> float | None:
        """Return the device seconds of the stage's image from noise; None if no speed is known."""
        held = self.catalogue.known(stage.model)
        return None if held is None else self._device_s(stage.pool, as_painted_by(resolved, held), held, FROM_NOISE)

    def note_saved(self, tenant: str, entered: PoolOption, noise_s: float | None) -> None:
        """Note which share of `noise_s`, the seconds of the request's image from noise by its last stage, the stage's
        lookup saves. A trial counts as what it would save: without lookups no reuse would be earned."""
        start = entered.trial.start if entered.trial is not None else entered.route.start
        hit_s = self._device_s(entered.pool, entered.resolved, entered.held, start)
        if noise_s and hit_s is not None:
            self.worth.note(tenant, 0.0 if kind_of(start) == NOISE else 1.0 - hit_s / noise_s)

    def _device_s(self, pool: str, resolved: ResolvedRequest, held: HeldModel, start: Start) -> float | None:
        """Return the device seconds of a request with that start in the pool now; None if no speed is known."""
        offer = self.rules.expected_thinning(resolved, held, start)
        return device_s(self.dataplane.state, pool, work_left(resolved, start), offer)

    async def _look_up(
        self,
        asker: Asker,
        wanted: Sequence[StartCandidate],
        asked: Sequence[PoolOption],
        embedding: PromptEmbedding | None,
        note: Note,
    ) -> LookupAnswer:
        spec = asker.resolved.spec
        if spec.scheduler in WITHOUT_REUSE:
            return _not_asked(asked, f"nothing is reused with scheduler {spec.scheduler.value}")
        if not asker.resolved.cacheable:
            return _not_asked(asked, "the cache was not used")
        if asker.left_out:
            return _not_asked(asked, asker.left_out)
        if self.gateway is None or embedding is None:
            return _not_asked(asked, "the cache could not be used")
        timeout_s = LOOKUP_S * self.wait_factor
        last = self.catalogue.known(asker.last_model)
        reference = last.model_digest if last is not None else ""
        scopes = (scope_of(asker.tenant, one.resolved, one.held, one.route) for one in asked)
        of = zip(scopes, wanted, strict=True)
        candidates = [LookupCandidate(scope, one.latents, one.images, reference) for scope, one in of]
        given = (asker.resolved.quality, timeout_s, repeat_key_of(spec), asker.noise_s, embedding.image)
        lookup = self.gateway.lookup(candidates, embedding.text, *given)
        answer = await bounded("gateway", timeout_s, lookup, note)
        if answer is None or len(answer.starts) != len(asked):
            return _not_asked(asked, "the cache did not answer")
        return answer

    def _may_run(self, asker: Asker, pool: PoolPlan) -> bool:
        own = pool.pool == asker.stage.pool
        return own or self.stages.may_run(asker.tenant, asker.resolved, pool.pool, pool.model)

    def _from_noise(self, asked: ResolvedRequest, candidate: StartCandidate, own: HeldModel) -> PoolOption:
        """Return the option of a lookup's candidate, in its model's terms, before its start is known."""
        held = self._held(candidate.model, own)
        resolved = as_painted_by(asked, held)
        route = Route("", FROM_NOISE, held.model, held.model_digest)
        return PoolOption(candidate.pool, held, resolved, self.rules.adapted(route, resolved.spec, held))

    def _held(self, model: str, own: HeldModel) -> HeldModel:
        return own if model == own.model else self.catalogue.known(model) or own

    def _or_noise(self, asked: PoolOption, found: CandidateStart) -> CandidateStart:
        """Return the start found; noise instead of a latent that leaves more steps than a thinned run from noise."""
        if not isinstance(found.start, FromLatent):
            return found
        of_start = self.rules.expected_thinning
        noise, hit = (of_start(asked.resolved, asked.held, start) for start in (FROM_NOISE, found.start))
        whole = asked.resolved.spec.num_inference_steps - found.start.saved_steps
        left = hit.least_count if hit.options else whole
        if not is_shorter_from_noise(self.dataplane.state, asked.pool, noise, left):
            return found
        why = f"from noise: thinned it takes {noise.least_count} steps, from the nearest latent {left}"
        return replace(found, start=FROM_NOISE, reason=why)

    def _found(self, asked: PoolOption, found: CandidateStart, stands_in: bool) -> FoundStart:
        share = found.start.saved_steps / asked.resolved.spec.num_inference_steps
        seconds = service_s(self.dataplane.state, asked.pool, work_left(asked.resolved, found.start))
        return FoundStart(kind_of(found.start), share, seconds, stands_in)

    def _lane(
        self, resolved: ResolvedRequest, entered: PoolOption, pool: PoolPlan, own: HeldModel
    ) -> PoolOption | None:
        held = self._held(pool.model, own)
        option = as_started_by(entered, pool.pool, as_painted_by(resolved, held), held)
        # With another step count, LoRAs may have to take effect at another step.
        return option and replace(option, route=self.rules.adapted(option.route, option.resolved.spec, held))


def _not_asked(asked: Sequence[PoolOption], why: str) -> LookupAnswer:
    return LookupAnswer(tuple(CandidateStart(FROM_NOISE, why) for _ in asked), search_skipped=True)


def _trial(draw: float, asked: Sequence[PoolOption], starts: Sequence[CandidateStart], held: HeldModel) -> Trial | None:
    """Draw one of the candidates' trials that an image from noise by model `held` can be compared with."""
    trials = [
        Trial(found.trial, one.held.model_digest, one.resolved.spec.num_inference_steps)
        for one, found in zip(asked, starts, strict=True)
        if isinstance(found.trial, FromLatent | FromImage)
    ]
    fitting = [trial for trial in trials if trial.reference_digest == held.model_digest]
    return fitting[min(int(draw * len(fitting)), len(fitting) - 1)] if fitting else None
