"""Decide where a request starts: embed, then look up, each with a bounded wait; a service that is down costs a hit."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pentimento.dataplane.cascade import own_threshold
from pentimento.dataplane.demand_report import CountedStart, StartCounts
from pentimento.dataplane.effects import PrepareRoute, ResolveRoute, Score
from pentimento.dataplane.events import RouteOption, RouteResolved, Scored
from pentimento.domain.embedding import PromptEmbedding
from pentimento.domain.fleet import HeldModel
from pentimento.domain.foresight import PromptForesight
from pentimento.domain.generation import Start
from pentimento.domain.image_request import ResolvedRequest
from pentimento.policies.plan.entry import NOISE, Stage, scaled_start_step
from services.frontdoor.interpreter import Interpreter
from services.frontdoor.metrics import CACHE_LEFT_OUT, LEFT_OUT, UNSCORED
from services.frontdoor.requests.jobs import Job, Jobs, RoutedStage
from services.frontdoor.routing.foresight import Foresight, left_out_note
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.routing.stages import StageChoice
from services.frontdoor.routing.start_choice import Asker, StartChoice, new_route_id
from services.frontdoor.routing.starts import (
    PoolOption,
    as_painted_by,
    cascade_stages,
    kind_of,
    may_be_scored,
    work_left,
)
from services.frontdoor.routing.step_rules import StepRules

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Router:
    """Route the stages of requests, and score their images. `starts` counts the starts for plans."""

    interpreter: Interpreter
    jobs: Jobs
    stages: StageChoice
    prompts: PromptEmbedder
    choice: StartChoice
    foresight: Foresight
    rules: StepRules
    starts: StartCounts

    def prepare_route(self, effect: PrepareRoute) -> None:
        """Begin to embed the prompt, in parallel with the journal's commit."""
        job = self.jobs.get(effect.request_id)
        resolved, stages = job.request.resolved, job.stages
        job.light_price = self.foresight.light_price(resolved, stages)
        job.cascade_left_out = self.foresight.why_left_out(resolved, stages, job.light_price)
        if job.cascade_left_out and not self.foresight.asks_cascade(resolved, stages):
            job.light_price = 1.0
        else:
            job.cascade_left_out = ""
        scored = may_be_scored(stages) and job.light_price < 1.0
        if self._asks_cache(job):
            job.noise_s = self.choice.noise_s(resolved, job.request.stages[-1])
            job.asks_cache = self.choice.worth.asks(job.request.tenant, job.noise_s)
            if not job.asks_cache:
                CACHE_LEFT_OUT.inc()
        if scored or self._asks_cache(job):
            job.embedding = self.jobs.spawn(job, self._embed(job, scored=scored), effect)

    def resolve_route(self, effect: ResolveRoute) -> None:
        job = self.jobs.get(effect.request_id)
        if effect.cascade_stage == 1 and self._left_out(job):
            job.note(left_out_note(job.stages[0].model, job.foreseen, job.light_price, job.cascade_left_out))
            LEFT_OUT.inc()
        job.resolving = effect
        self.jobs.spawn(job, self._resolve(job, effect), effect)

    def score(self, effect: Score) -> None:
        job = self.jobs.get(effect.request_id)
        self.jobs.spawn(job, self._score(job, effect.fencing_token), effect)

    def _left_out(self, job: Job) -> bool:
        """Return whether the prompt's prediction, and not a lack of workers, skipped the light stage."""
        routed = job.routed.get(0)
        if routed is None or not routed.options or 1 in job.routed or job.executions:
            return False
        return self.foresight.is_left_out(job.stages, job.light_price, routed.options[0].route.start, job.foreseen)

    async def _embed(self, job: Job, *, scored: bool) -> PromptEmbedding | None:
        """Embed the prompt; a failure costs only the cache, or the image its score."""
        try:
            return await self.prompts.embed(job.request.tenant, job.request.resolved, job.note, scored=scored)
        except Exception:
            logger.exception("a prompt was not embedded")
            job.note("cache skipped: embedder defect")
            return None

    def _asks_cache(self, job: Job) -> bool:
        return job.asks_cache and self.prompts.are_searched(job.request.resolved)

    async def _resolve(self, job: Job, effect: ResolveRoute) -> None:
        request, number = job.request, effect.cascade_stage
        # If the stage was decided before, no worker holds those weights any longer.
        before = job.routed.get(number)
        stages = await self.stages.again(job) if effect.anew else job.stages
        stage, foreseen = stages[number], None
        held = await self.stages.awaited_model(job, stage.model)
        if held is None:
            return
        started_at = self.interpreter.clock.monotonic()
        if request.resolved.replay is not None:
            decided: tuple[PoolOption, ...] = (self._pinned(request.resolved, stage, held),)
        else:
            embedding = await self._awaited_embedding(job)
            decided = await self._decided(job, number, stages, held, embedding)
            if before is None and self._asks_cache(job) and not (number == 0 and job.cascade_left_out):
                noise_s = self.choice.noise_s(request.resolved, request.stages[-1])
                self.choice.note_saved(request.tenant, decided[0], noise_s)
            if number == 0:
                stages = self.stages.from_start(job, decided[0])
                foreseen = await self._foreseen(job, stages, decided[0].route.start, embedding)
        if job.resolving is not effect:
            # The request was deferred to another stage during the wait.
            return
        if number == 0 or effect.anew:
            job.restaged, job.foreseen = stages, foreseen
        options = self._scheduled(job, stages, stages[number].cascade, decided)
        counted = before.counted if before is not None else None
        if number == 0 and before is None:
            counted = self._count_start(stage, as_painted_by(request.resolved, held), options[0])
        now = self.interpreter.clock.monotonic()
        job.routed[number] = RoutedStage(options, queued_at=now, counted=counted)
        job.time_stage("route", started_at, now)
        job.audience.routed(options[0].route)
        self.interpreter.submit(self._resolved(job, number, options))

    async def _awaited_embedding(self, job: Job) -> PromptEmbedding | None:
        """Return the embedding; None immediately if neither a lookup nor a prediction needs it before the image."""
        foresees = self.foresight.foresees(job.stages, job.light_price)
        needed = foresees or (job.asks_cache and job.request.resolved.cacheable)
        return await job.embedding if job.embedding is not None and needed else None

    async def _decided(
        self, job: Job, number: int, stages: Sequence[Stage], held: HeldModel, embedding: PromptEmbedding | None
    ) -> tuple[PoolOption, ...]:
        request = job.request
        left_out = "" if job.asks_cache else self.choice.worth.why_left_out(request.tenant, job.noise_s)
        if number == 0 and job.cascade_left_out:
            left_out = job.cascade_left_out
        asked = (request.tenant, request.resolved, stages[number], request.draw, stages[-1].model)
        asker = Asker(*asked, stays=number > 0, left_out=left_out, noise_s=job.noise_s or None)
        decided = await self.choice.choose(asker, held, embedding, job.note)
        return tuple(self.rules.light_starts.started(job, number, option) for option in decided)

    async def _foreseen(
        self, job: Job, stages: Sequence[Stage], entry: Start, embedding: PromptEmbedding | None
    ) -> PromptForesight | None:
        """Return the prediction for the first stage, and note what it saves."""
        foreseen = await self.foresight.foresee(stages, job.light_price, entry, embedding, job.note)
        self.foresight.note_gain(stages, job.light_price, entry, foreseen)
        if unscored := self.foresight.unscored_note(stages, entry, foreseen):
            job.note(unscored)
        return foreseen

    def _scheduled(
        self, job: Job, stages: Sequence[Stage], cascade: str, decided: Sequence[PoolOption]
    ) -> tuple[PoolOption, ...]:
        """Return the options with the stages in their routes, and the steps that reuse features."""
        threshold = own_threshold(self.interpreter.dataplane.state, job.foreseen)
        told = cascade_stages(stages, kind_of(decided[0].route.start), threshold)
        return tuple(
            self.rules.reusing_features(replace(option, route=replace(option.route, stages=told, cascade=cascade)))
            for option in decided
        )

    def _resolved(self, job: Job, number: int, options: tuple[PoolOption, ...]) -> RouteResolved:
        first, *others = (as_route_option(self.rules, option) for option in options)
        return RouteResolved(
            job.request.request_id,
            first.pool,
            first.model_digest,
            first.work,
            number,
            tuple(others),
            self.rules.may_pair(options[0]),
            kind_of(options[0].route.start),
            tuple(stage.pool for stage in job.restaged),
            job.stages[number].cascade,
            first.thinning,
            job.foreseen if number == 0 else None,
            job.light_price if number == 0 else 0.0,
        )

    def _pinned(self, resolved: ResolvedRequest, stage: Stage, held: HeldModel) -> PoolOption:
        """Return a replay's only option, without a lookup or another pool."""
        assert resolved.replay is not None
        version = self.interpreter.dataplane.state.index.version
        route = replace(resolved.replay.route, route_id=new_route_id(), plan_version=version)
        return PoolOption(stage.pool, held, resolved, route)

    def _count_start(self, stage: Stage, own: ResolvedRequest, chosen: PoolOption) -> tuple[str, CountedStart]:
        """Count the start. `own` is the request as its first stage generates it; plans use that step count."""
        kind, count = kind_of(chosen.route.start), own.spec.num_inference_steps
        saved = chosen.route.start.saved_steps
        saved = scaled_start_step(saved, chosen.resolved.spec.num_inference_steps, count)
        start = CountedStart(saved, kind, count, chosen.route.model if kind != NOISE else "")
        loras, controlnets = own.spec.loras, own.spec.controlnets
        self.starts.count(stage.pool, start, [one.name for one in loras], [one.name for one in controlnets])
        return stage.pool, start

    async def _score(self, job: Job, token: int) -> None:
        execution, stages = job.executions[token], job.stages
        began_at = self.interpreter.clock.monotonic()
        if job.embedding is None:
            # An earlier process of this frontdoor routed the request, or its start led to a cascade.
            job.embedding = self.jobs.spawn(job, self._embed(job, scored=True), "embed for a score")
        prompt = self.prompts.scored(await job.embedding)
        execution.confidence = await self.foresight.score(stages, execution, prompt)
        job.time_stage("score", began_at, self.interpreter.clock.monotonic())
        if execution.confidence is None:
            UNSCORED.inc()
        self.interpreter.submit(Scored(execution.attempt.request_id, token, execution.confidence))


def as_route_option(rules: StepRules, option: PoolOption) -> RouteOption:
    """Return the option in the dataplane's terms."""
    thinning = rules.thinning_of(option)
    work = thinning.reused_share * work_left(option.resolved, option.route.start)
    return RouteOption(option.pool, option.route.model_digest, work, thinning)
