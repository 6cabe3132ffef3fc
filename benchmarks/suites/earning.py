"""Simulate a suite that earns the reuse of one model's latents by trials among its requests."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.earned_pairs import MeasuredPair, read_pairs
from benchmarks.earned_reuse import (
    ALPHA,
    SAMPLE_SHARE,
    TRIAL_SHARE,
    WORK_SHARE,
    KnownEncoder,
    Shadow,
    SilentWatch,
    recorded_step,
    step_of,
)
from lab.emulation.device import EmulatedDevice
from lab.emulation.jobs import EmulatedJob
from lab.runs import StartKind
from lab.simulator import Scenario, Simulation
from lab.simulator.cache import MISS, CacheAnswer, CacheSettings, SimulatedCache
from lab.workloads import Workload
from pentimento.dataplane.events import AttemptKey
from pentimento.domain.fleet import Plan
from pentimento.domain.online_quality import ComparedHit
from pentimento.policies.cache_selection import (
    RENOISED_SHARE,
    RETAKEN_SHARE,
    NearestEntry,
    SelectionContext,
    SelectionRules,
    UseLatent,
    select_start,
)
from pentimento.policies.earned_reuse import trial_start
from pentimento.policies.followed_cache import CacheChoice
from pentimento.policies.plan.registry import CacheUse
from pentimento.policies.reuse_rules import ReuseRules
from pentimento.policies.shadow_painting import IdleWorker, ShadowBudget, SuiteLoad, busy_worker, is_sampled
from pentimento.profiles.catalogue import ProfileSet
from pentimento.profiles.document import Profile, ProfileKind, profiles_from_json
from pentimento.profiles.kinds import options
from pentimento.profiles.rules import ThresholdRule
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from services.vectordb_gateway.entries.rules import PlannedCache

HEAVY = "sdxl"
RECORDED = Path(__file__).parents[1] / "measured_profiles.json"
STEPS, SHADOW = 50, "shadow"
# Recorded pairs of the nearest similarities; one is drawn.
NEIGHBOURS = 20


@dataclass(frozen=True)
class Known:
    """State which profiles exist when the model is registered. `measured`: the kinds that devices measure from then on
    instead of serving, in order, for each device."""

    reuse: bool = True
    steps: bool = True
    loras: bool = True
    cascade: bool = True
    measured: tuple[tuple[ProfileKind, ...], ...] = ()


@dataclass(frozen=True)
class MeasuredProfile:
    """Hold a profile with its rows in the order of their measurement, and the denoising steps of all images until each
    was written."""

    profile: Profile
    image_steps: tuple[int, ...]

    def after(self, image_steps: int) -> Profile:
        """Return the profile in its file after that number of steps."""
        rows = zip(self.profile.rows, self.image_steps, strict=True)
        return replace(self.profile, rows=tuple(row for row, done in rows if done <= image_steps))


def measured_profiles(path: Path = RECORDED) -> Mapping[ProfileKind, MeasuredProfile]:
    """Return the profiles that `profile_cost --record` measured."""
    record = json.loads(path.read_text(encoding="utf-8"))
    profiles = profiles_from_json(json.dumps(record["profiles"]))
    return {one.kind: MeasuredProfile(one, tuple(record["image_steps"][one.kind.value])) for one in profiles}


class WatchedCache(SimulatedCache):
    """Choose starts of the heavy model as a gateway does, from its profile or as trials allow. `due` receives the
    images to generate again."""

    def __init__(self, folder: str, of: Profile, settings: CacheSettings, embeddings: np.ndarray, seed: int) -> None:
        """Begin without a profile of the model and encoder that `of` names."""
        super().__init__(CacheUse.LATENTS, "lcbfu", settings, embeddings)
        self.of = of.of
        base = SelectionRules((), (), ALPHA, renoised_share=RENOISED_SHARE, retaken_share=RETAKEN_SHARE)
        rules = ReuseRules(base, rule=ThresholdRule.LOWER_BOUND, earns=True)
        self._planned = PlannedCache(CacheChoice(), rules)
        self._ledger = open_cache_ledger(f"sqlite:///{Path(folder) / 'ledger.sqlite'}")
        self.watch = SilentWatch(self._ledger, KnownEncoder(self.of.encoder_digest), self._planned)
        self.due: deque[Shadow] = deque(maxlen=64)
        self._pairs = read_pairs()
        self._places = np.array([pair.similarity for pair in self._pairs])
        self._rng, self._seed = np.random.default_rng(seed), seed
        # Lookups and compared shadows so far.
        self._count = self._compared = 0
        self._keep()

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def follow(self, plan: Plan) -> None:
        """Go by the plan, as a gateway does."""
        self._planned.take(plan)
        self._keep()

    def take(self, profile: Profile) -> None:
        """Go by the profile, as a gateway does after its file changes."""
        self._planned.rules = replace(self._planned.rules, profiles=ProfileSet((profile,)))
        self._keep()

    def lookup(
        self, tenant: str, model: str, row: int, step_count: int, latents: bool = True, images: bool = True
    ) -> CacheAnswer:
        """Return the start of a request of the heavy model."""
        return super().lookup(tenant, model, row, step_count, latents, False) if model == HEAVY else MISS

    def insert(self, tenant: str, model: str, row: int, step_count: int, start_step: int = 0, depth: int = 0) -> None:
        """Insert the latents of the heavy model's images."""
        if model == HEAVY:
            super().insert(tenant, model, row, step_count, start_step, depth)

    def _keep(self) -> None:
        self._rules = self._planned.rules.keeping(self.of.model_digest, self.of.encoder_digest)

    def _select(self, by_text: Sequence, by_image: Sequence, step_count: int) -> CacheAnswer:  # type: ignore[type-arg]
        tables = self.watch.of(self.of.model_digest, self.of.encoder_digest)
        entries = [NearestEntry(found.similarity, tuple(found.entry.steps)) for found in by_text]
        context, rules = SelectionContext(step_count, entries), tables.rules()
        chosen = select_start(context, rules)
        hit = chosen if isinstance(chosen, UseLatent) else None
        tried = trial_start(context, rules, tables.trials[0]) if hit is None and tables.trials else None
        trial = tried if isinstance(tried, UseLatent) else None
        self._count += 1
        again = hit or trial
        if again is not None and is_sampled(f"{self._seed}-{self._count}", SAMPLE_SHARE if hit else TRIAL_SHARE):
            similarity = by_text[again.entry].similarity
            cost = step_count - (0 if hit else again.saved_steps)
            self.due.append(Shadow(again, similarity, cost, self._pair(similarity)))
        if hit is None:
            return MISS
        answer: CacheAnswer = by_text[hit.entry].answer(StartKind.LATENT, hit.saved_steps, step_count)
        return answer

    def _pair(self, similarity: float) -> MeasuredPair:
        nearest = np.argsort(np.abs(self._places - similarity))[:NEIGHBOURS]
        return self._pairs[int(self._rng.choice(nearest))]

    def report(self, shadow: Shadow) -> None:
        """Report a comparison to the gateway."""
        step = step_of(shadow.start)
        self._compared += 1
        seen = ComparedHit(
            request_id=str(self._compared),
            model_digest=self.of.model_digest,
            reference_model_digest=self.of.model_digest,
            encoder_digest=self.of.encoder_digest,
            from_image=False,
            skipped_steps=step,
            step_count=STEPS,
            similarity=min(shadow.similarity, 1.0),
            quality=shadow.pair.qualities[recorded_step(step)],
            scratch_quality=shadow.pair.scratch_quality,
        )
        asyncio.run(self.watch.report(seen))


class HourSimulation(Simulation):
    """Simulate the suite, with shadows among the requests. `trial_count`: shadows that were compared. `changes`: the
    profiles that come into force, with their seconds; without them the heavy model takes all steps from noise."""

    def __init__(
        self,
        scenario: Scenario,
        workload: Workload,
        rng: Random,
        cache: WatchedCache,
        changes: Sequence[tuple[float, Profile]],
    ) -> None:
        super().__init__(scenario, workload, rng, cache)
        self._fleet.thin(HEAVY, ())
        for at_s, profile in changes:
            self._agenda.at(at_s, self._take, profile)
        self._watched = cache
        self._budget = ShadowBudget(WORK_SHARE, 1e9, 0.0)
        self._shadows: dict[AttemptKey, tuple[Shadow, float]] = {}
        self.trial_count = 0

    def _take(self, profile: Profile) -> None:
        if profile.kind is ProfileKind.STEPS:
            self._fleet.thin(HEAVY, options(profile, STEPS))
        else:
            self._watched.take(profile)

    def job_began(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        """Report the begin of an attempt."""
        if job.owner not in self._shadows:
            super().job_began(device, job)

    def job_yielded(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        """Report that an attempt's place is about to be free."""
        if job.owner not in self._shadows:
            super().job_yielded(device, job)

    def job_finished(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        """Report an attempt or compare a shadow, and begin the next shadow that the budget pays for."""
        found = self._shadows.pop(job.owner, None)
        if found is None:
            self._budget.earn(job.device_s)
            super().job_finished(device, job)
        else:
            shadow, paid_s = found
            self._budget.spend(job.device_s - paid_s)
            self.trial_count += 1
            self._watched.report(shadow)
        self._begin_shadow()

    def _begin_shadow(self) -> None:
        due = self._watched.due
        devices = {one.worker_id: one for one in self._fleet.holding(HEAVY)}
        if not due or not devices:
            return
        cost_s = due[0].cost * next(iter(devices.values())).costs.step(1).mean_s
        workers = (
            IdleWorker(name, one.running_count + one.waiting_count, one.credit_count, True)
            for name, one in devices.items()
        )
        chosen = busy_worker(SuiteLoad(0, 0, 0.0, tuple(workers)))
        if chosen is None or self._budget.earn(0.0) < cost_s:
            return
        shadow, owner = due.popleft(), (f"{SHADOW}-{self.trial_count + len(self._shadows)}", 0)
        self._budget.spend(cost_s)
        self._shadows[owner] = (shadow, cost_s)
        devices[chosen].start(owner, shadow.cost, None)
