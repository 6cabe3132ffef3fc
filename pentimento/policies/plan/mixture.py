"""Decide how many devices hold the large model, as MoDM's global monitor does (section 5.3, Algorithm 1 of the paper).

Misses need the large model; a small model refines hits, and so do large devices with spare capacity. A PID controller
damps the number: a pure function of its memory, with the integral limited to the range of the output.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pentimento.domain.fleet import Plan, PoolPlan, RouteShare, SteeredCount
from pentimento.policies.plan.costs import batch_costs, has_profile, profiled_steps
from pentimento.policies.plan.demand import averaged_demand, demand_of, settled_weight, share_weight
from pentimento.policies.plan.entry import EVERY_START, IMAGE, LATENT, NOISE, SPARE
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, PlanInput, hold_resident
from pentimento.policies.plan.placement import one_left, place
from pentimento.policies.plan.settings import MixtureMode, ServingSettings

# Misses go to the large model, hits to the small one; large workers without misses take hits.
SPARING = (RouteShare(NOISE, 1.0), RouteShare(SPARE, 1.0))
HITS = (RouteShare(LATENT, 1.0), RouteShare(IMAGE, 1.0))
# Routes of models that share a device. None are spare: a hit on the large model would take time from the small one.
OWN_STARTS = (RouteShare(NOISE, 1.0), RouteShare(LATENT, 1.0))
IMAGES_ALONE = (RouteShare(IMAGE, 1.0),)
# Gains of MoDM's PID controller (section 5.3 of the paper). They were tuned for a step every 180 s, with times in
# minutes, thirds of it; so another period follows the same course, slower or faster.
_PROPORTIONAL, _INTEGRAL, _DERIVATIVE = 0.6, 0.05, 0.05


@dataclass(frozen=True)
class MixtureLoad:
    """Hold the load in full runs of the large model a second: W_miss of Eq. 7, W_hit of Eq. 8."""

    misses: float
    hits: float

    @classmethod
    def of(cls, rate: float, starts: Sequence[tuple[float, float]]) -> "MixtureLoad":
        """Return the load at `rate` requests a second. `starts` are (share of its steps that a start saves, share of
        all requests), both 0..1; the rest starts from noise."""
        misses, refined = work_shares(starts)
        return cls(rate * misses, rate * refined)


def work_shares(starts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean full runs of misses and of hits in a request; starts as in `MixtureLoad.of`."""
    hit_share = sum(share for saved, share in starts if saved > 0)
    refined = sum(share * max(0.0, 1.0 - saved) for saved, share in starts if saved > 0)
    return max(0.0, 1.0 - hit_share), refined


def large_count(mode: MixtureMode, load: MixtureLoad, device_count: int, large: float, small: float) -> int:
    """Return N_large before damping; `large` and `small` are a device's full runs a second (P_large, P_small).

    Quality: the largest number that leaves enough for the hits (Eq. 6-10). Throughput: by the ratio of the work (Eq.
    11-12), not rounded down as in Algorithm 1, which would starve the misses. Quality mode does the same if even the
    fewest large devices leave too little for the hits: with the misses first, hits would starve.
    """
    needed = math.ceil(load.misses / large - 1e-9)
    if mode is MixtureMode.THROUGHPUT or not carries(load, device_count, needed, large, small):
        weighted_hits = load.hits * large / small
        total = weighted_hits + load.misses
        return round(device_count * load.misses / total) if total > 0 else device_count
    while needed < device_count and carries(load, device_count, needed + 1, large, small):
        needed += 1
    return needed


def carries(load: MixtureLoad, device_count: int, count: int, large: float, small: float) -> bool:
    """Return whether `count` large devices satisfy constraints (7) and (9)."""
    spare = count * large - load.misses
    return count <= device_count and spare >= -1e-9 and spare + (device_count - count) * small >= load.hits - 1e-9


@dataclass(frozen=True)
class PidMemory:
    """Hold the state of a PID controller: the steered `value`, the last `error`, the `integral` of the error over time
    in thirds of the period."""

    value: float
    integral: float = 0.0
    error: float | None = None


def pid_step(period_s: float, memory: PidMemory, target: float, elapsed_s: float, low: float, high: float) -> PidMemory:
    """Return the memory after a step of `value` towards `target`, `elapsed_s` after the last one, limited to `low` and
    `high`.

    The gains give the move of a whole period. A shorter step makes that share of the move, so that steps every 5 s
    follow the same course as steps every 180 s; a longer step moves no further than a period.

    Anti-windup: at a limit, an error that pushes further out is not integrated, and an integral that pushes further out
    loses the part beyond the limit.
    """
    dt = 3.0 * elapsed_s / period_s
    error = target - memory.value
    integral = memory.integral + error * dt
    slope = 0.0 if memory.error is None or dt <= 0 else (error - memory.error) / dt
    move = _PROPORTIONAL * error + _INTEGRAL * integral + _DERIVATIVE * slope
    share = min(elapsed_s / period_s, 1.0)
    wanted = memory.value + move * share
    value = min(max(wanted, low), high)
    beyond = wanted - value
    if beyond * error > 0:
        integral = memory.integral
    # Without elapsed time the part beyond comes from a moved limit, not from the integral.
    if share > 0 and beyond * integral * _INTEGRAL > 0:
        integral -= math.copysign(min(abs(integral), abs(beyond / (_INTEGRAL * share))), integral)
    return PidMemory(value, integral, error)


@dataclass(frozen=True)
class MixtureMemory:
    """Hold the monitor's estimates at `at_s`. `misses` and `refined` as in `work_shares`; `count` large devices since
    `moved_at_s`."""

    pid: PidMemory
    at_s: float
    rate: float
    misses: float
    refined: float
    small_index: int
    count: int
    moved_at_s: float


@dataclass(frozen=True)
class MixturePolicy:
    """Plan as MoDM's monitor. `headroom` is the share of the throughput that is planned with (0.9 in MoDM's artefact,
    quality mode).

    The small model (section 7.1 of the paper) is the best one of `settings.small_models` that carries the load; a
    better one returns only with `settings.hysteresis` to spare. Devices change their models at most once in
    `settings.dwell_s`, by default shorter than the paper's period. If few requests arrive between two plans, rate and
    starts are averages over several plans.
    """

    settings: ServingSettings
    headroom: float = 0.9

    def __call__(self, context: PlanInput) -> Decision:
        if (alone := one_left(context, self.settings, self.settings.small_models)) is not None:
            return alone
        last, device_count = context.last.memory, self._device_count(context)
        before = last if isinstance(last, MixtureMemory) else None
        rate, misses, refined = self._demand(context, before)
        load = MixtureLoad(rate * misses, rate * refined)
        index = self._best_small(context, load, before.small_index if before else 0)
        large = self.headroom * self._throughput(context, self.settings.heavy)
        small = self.headroom * self._throughput(context, self.settings.small_models[index])
        target = large_count(self.settings.modm_mode, load, device_count, large, small)
        pid = self._damped(before, target, context.now_s, device_count)
        count, moved_at_s = max(1, min(round(pid.value), device_count)), context.now_s
        if before is not None and self._stays(context, before, index, count):
            index, count, moved_at_s = before.small_index, min(before.count, device_count), before.moved_at_s
        memory = MixtureMemory(pid, context.now_s, rate, misses, refined, index, count, moved_at_s)
        plan = self._plan(context, count, self.settings.small_models[index])
        return Decision(plan, memory, SteeredCount(self.settings.heavy, target, pid.value, count))

    def _device_count(self, context: PlanInput) -> int:
        return context.holder_count(self.settings.heavy, *self.settings.small_models)

    def _stays(self, context: PlanInput, before: MixtureMemory, index: int, count: int) -> bool:
        if (before.small_index, before.count) == (index, count):
            return True
        known = has_profile(context, self.settings.small_models[before.small_index])
        return known and context.now_s - before.moved_at_s < self.settings.dwell_s

    def _demand(self, context: PlanInput, before: MixtureMemory | None) -> tuple[float, float, float]:
        """Return the requests a second over all pools, and the full runs of misses and of hits in a request."""
        demands = [demand_of(context, model) for model in (self.settings.heavy, *self.settings.small_models)]
        newest = sum(demand.arrivals_per_s for demand in demands)
        known, elapsed_s = (before.rate, context.now_s - before.at_s) if before else (self.settings.expected_per_s, 0.0)
        weight = settled_weight(self.settings.demand_weight, known)
        rate = averaged_demand(newest, known, weight, elapsed_s)
        starts = [start for demand in demands for start in demand.starts]
        total = sum(start.request_count for start in starts)
        if not total:
            return rate, *((before.misses, before.refined) if before else (1.0, 0.0))
        step_count = profiled_steps(context, self.settings.heavy) or self.settings.step_count
        shares = [
            (start.start_step / (start.step_count or step_count), start.request_count / total) for start in starts
        ]
        misses, refined = work_shares(shares)
        if before is None:
            return rate, misses, refined
        counted = share_weight(total)
        return (
            rate,
            before.misses + counted * (misses - before.misses),
            before.refined + counted * (refined - before.refined),
        )

    def _throughput(self, context: PlanInput, model: str) -> float:
        """Return the runs a second of one device in its largest planned batch, by profiles."""
        return batch_costs(context, model, self.settings.batch_sizes)[-1].throughput

    def _best_small(self, context: PlanInput, load: MixtureLoad, current: int) -> int:
        """Return the index of the best small model that carries the load, or of the last one. Models without a profile
        are skipped while another has one."""
        models = self.settings.small_models
        profiled = [index for index, model in enumerate(models) if has_profile(context, model)] or [len(models) - 1]
        large = self.headroom * self._throughput(context, self.settings.heavy)
        for index in profiled:
            small = self.headroom * self._throughput(context, models[index])
            slack = 1.0 - self.settings.hysteresis if index < current else 1.0
            eased = MixtureLoad(load.misses / slack, load.hits / slack)
            needed = max(1, math.ceil(eased.misses / large - 1e-9))
            if carries(eased, self._device_count(context), needed, large, small):
                return index
        return profiled[-1]

    def _damped(self, before: MixtureMemory | None, target: int, now_s: float, device_count: int) -> PidMemory:
        period_s = self.settings.damping_period_s
        if before is None or not period_s:
            return PidMemory(float(target), 0.0, 0.0)
        return pid_step(period_s, before.pid, target, now_s - before.at_s, 1.0, float(device_count))

    def _plan(self, context: PlanInput, count: int, small: str) -> Plan:
        heavy, device_count = self.settings.heavy, self._device_count(context)
        batch = max(self.settings.batch_sizes)
        assignments = place(context, {heavy: count, small: device_count - count}, {heavy: batch, small: batch})
        workers = {
            model: tuple(assignment.worker_id for assignment in assignments if assignment.model == model)
            for model in (heavy, *self.settings.small_models)
        }
        pools = [
            PoolPlan(heavy, heavy, workers[heavy], routes=SPARING if workers[small] else EVERY_START),
            PoolPlan(small, small, workers[small], routes=HITS if workers[small] else ()),
        ]
        # Replaced small models serve the requests that wait for them.
        for model in self.settings.small_models:
            if model != small and workers[model]:
                pools.append(PoolPlan(model, model, workers[model]))
        return Plan(UNNUMBERED, assignments, tuple(pools))


@dataclass(frozen=True)
class ResidentMixture:
    """Keep every worker's model, on devices that hold both models. Misses and hits of latents go to the heavy
    model, hits of images to the first small one that a worker holds, else to the heavy model too."""

    settings: ServingSettings

    def __call__(self, context: PlanInput) -> Decision:
        held = hold_resident(context).plan
        models = {pool.model for pool in held.pools}
        small = next((model for model in self.settings.small_models if model in models), "")
        routes = {small: IMAGES_ALONE, self.settings.heavy: OWN_STARTS if small else EVERY_START}
        pools = tuple(replace(pool, routes=routes.get(pool.model, ())) for pool in held.pools)
        return Decision(replace(held, pools=pools))
