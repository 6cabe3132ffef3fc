"""Compare the allocation with the load at the live plan interval: MoDM's Fig. 10 and 17 with a plan every 5 s.

    python -m benchmarks.monitor

Simulated by the serving code (the live suite's policies and dataplane): sixteen MI210s with MoDM's models and the
prompts of `paper_figures`, where the monitor plans every 180 s as the paper's does. Loads are the steady ones of Fig.
10, 6 to 26 requests a minute; Fig. 17's load that rises and falls between these; and the same twice as high, where SDXL
does not suffice, so that the small model is switched.

A segment's answers count from the large model's time after its begin to the same after its end, since a request takes
at least that, and are divided by its requests. A reallocation is a plan that changes a device's model; the last
device of a model that has finished its queue belongs to the one before.

There are three readings. `answered ÷ asked` has the target. The bound is a perfect follower's: the share of each
segment that sixteen devices carry with misses by the large model, hits by the smallest, and no idle second. The last
divides the answers by that bound. Neither changes the first.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt

from benchmarks.papers.constants import MI210_SECONDS
from benchmarks.papers.systems import mixture_scenario, prompt_content, prompt_load, run
from lab.planners.registry import POLICIES
from lab.runs import RequestRecord
from lab.runs.measure import Figure, at_least, at_most, informative, measured, parse_options, publish
from lab.simulator.scenario import Scenario
from lab.workloads import Content, Segment, Workload, fluctuating
from lab.workloads.builders import MODM_FLUCTUATION
from pentimento.policies.plan.inputs import Decision, PlanInput, Policy
from pentimento.policies.plan.settings import ServingSettings

SYSTEMS = ("modm", "joint")
PERIOD_S, DWELL_S, SLO_S = 5.0, 60.0, 4 * MI210_SECONDS["large"]
CACHE, DEVICES, STEPS = 10_000, 16, 50
STEADY_PER_MINUTE = (6, 14, 22, 26)
# Fig. 17's rates, and those at which one small model does not suffice for this log
SCALES = (1.0, 2.0)
LEAST_FOLLOWED = 0.97


@dataclass(frozen=True)
class Watched:
    """Store one run: shares (0..1), reallocations and models.

    The shares are answered requests, the most that devices could carry, and answered requests of that. `moved_at_s` are
    the seconds at which devices changed their models; `smalls` are the small models that had devices, in order.
    """

    system: str
    load: str
    seed: int
    followed: float
    bound: float
    of_carried: float
    moved_at_s: tuple[float, ...]
    smalls: tuple[str, ...]

    @property
    def most_in_dwell(self) -> int:
        """Return the most reallocations within one dwell time."""
        return max((sum(at <= other < at + DWELL_S for other in self.moved_at_s) for at in self.moved_at_s), default=0)


class WatchedAllocator:
    """Record an allocator's decisions, which a run leaves behind."""

    def __init__(self, allocator: Policy) -> None:
        self._allocator = allocator
        self.moved_at_s: list[float] = []
        self.smalls: list[str] = []

    def __call__(self, context: PlanInput) -> Decision:
        decision = self._allocator(context)
        before = {assignment.worker_id: assignment.model for assignment in context.last.plan.assignments}
        now = {assignment.worker_id: assignment.model for assignment in decision.plan.assignments}
        asked = {pool.model for pool in context.last.plan.pools if pool.routes}
        # A device that finished its old model's queue ends the reallocation before.
        if any(before[name] in asked for name, model in now.items() if before.get(name, model) != model):
            self.moved_at_s.append(context.now_s)
        smalls = [pool.model for pool in decision.plan.pools if pool.model != "large" and pool.routes]
        self.smalls += [model for model in smalls[:1] if model not in self.smalls[-1:]]
        return decision


def main() -> int:
    options = parse_options("monitor", __doc__, add_options)
    systems = options.rest["systems"] or SYSTEMS
    seeds = range(1, 2 if options.quick else 6)
    runs = []
    for seed in seeds:
        for system in systems:
            runs += [steady(system, rate, seed, options.quick) for rate in STEADY_PER_MINUTE]
            runs += [swinging(system, scale, seed, options.quick) for scale in SCALES]
            print(
                system, seed, [(one.load, round(one.followed, 3), one.most_in_dwell) for one in runs[-6:]], flush=True
            )
    return publish(options, figures_of(runs), notes={"period_s": PERIOD_S, "dwell_s": DWELL_S, "simulated": True})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="only these")


def figures_of(runs: Sequence[Watched]) -> list[Figure]:
    """Return the figures of each system."""
    found = []
    for system in dict.fromkeys(one.system for one in runs):
        own = [one for one in runs if one.system == system]
        follows, calm = at_least(LEAST_FOLLOWED), at_most(1)
        for load in dict.fromkeys(one.load for one in own):
            here = [one for one in own if one.load == load]
            shares = [one.followed for one in here]
            found.append(measured(f"{system}, {load}: answered ÷ asked", shares, fmean, follows))
            bounds, carried = [one.bound for one in here], [one.of_carried for one in here]
            found.append(measured(f"{system}, {load}: what can be carried ÷ asked", bounds, fmean, informative()))
            found.append(measured(f"{system}, {load}: answered ÷ what can be carried", carried, fmean, informative()))
        most = [one.most_in_dwell for one in own]
        found.append(measured(f"{system}: reallocations in a dwell time, at most", most, max, calm))
        swings = [one for one in own if one.load.startswith("Fig. 17")]
        found.append(
            measured(
                f"{system}: reallocations of a swinging run", [len(r.moved_at_s) for r in swings], fmean, informative()
            )
        )
        switches = [len(one.smalls) - 1 for one in swings if one.load.endswith("x2")]
        found.append(measured(f"{system}: switches of the small model, twice the load", switches, fmean, informative()))
    return found


def steady(system: str, per_minute: int, seed: int, quick: bool) -> Watched:
    """Play one of Fig. 10's loads for 100 minutes; the second half counts."""
    minutes = 20 if quick else 100
    workload = prompt_load(per_minute, per_minute * minutes, _content(per_minute * minutes, seed), seed)
    half = 30.0 * minutes
    return _watched(system, f"Fig. 10, {per_minute} a minute", seed, workload, [0.0, half, 2 * half])


def swinging(system: str, scale: float, seed: int, quick: bool) -> Watched:
    """Play Fig. 17's load, scaled."""
    factor = 0.25 if quick else 1.0
    segments = [Segment(one.duration_s * factor, one.rate * scale) for one in MODM_FLUCTUATION]
    count = round(1.1 * sum(one.duration_s * one.rate for one in segments))
    workload = fluctuating(np.random.default_rng(seed), _content(count, seed), segments)
    edges = [0.0, *np.cumsum([one.duration_s for one in segments])]
    return _watched(system, f"Fig. 17, x{scale:g}", seed, workload, edges)


def _watched(system: str, load: str, seed: int, workload: Workload, edges: Sequence[float]) -> Watched:
    scenario = scenario_of(system, workload.mean_rate)
    allocator = WatchedAllocator(scenario.policy.allocator)
    records = run(replace(scenario, policy=replace(scenario.policy, allocator=allocator)), workload, seed)
    painted_s = MI210_SECONDS["large"]
    asked, _ = np.histogram([record.arrived_s for record in records], bins=edges)
    ended = [record.ended_s - painted_s for record in records if record.outcome.answered]
    answered, _ = np.histogram([max(at, 0.0) for at in ended], bins=edges)
    if len(edges) == 3:
        # A steady load counts its second half: a growing queue is not throughput.
        asked, answered = asked[1:], answered[1:]
    carried = carried_shares(records, edges)[-len(asked) :]
    kept = np.minimum(asked, answered)
    most = asked * carried
    bound, of_carried = float(most.sum() / asked.sum()), float(np.minimum(kept, most).sum() / most.sum())
    moved, smalls = tuple(allocator.moved_at_s), tuple(allocator.smalls)
    followed = float(kept.sum() / asked.sum())
    return Watched(system, load, seed, followed, bound, of_carried, moved, smalls)


def carried_shares(records: Sequence[RequestRecord], edges: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the share of each segment's requests that the devices can carry: misses by the large model, hits by the
    smallest, by the starts of the answered ones."""
    fastest_s = min(MI210_SECONDS.values())
    answered = [record for record in records if record.outcome.answered]
    arrived = [record.arrived_s for record in answered]
    seconds = [
        fastest_s * (1.0 - record.start_step / STEPS) if record.start_step else MI210_SECONDS["large"]
        for record in answered
    ]
    asked, _ = np.histogram([record.arrived_s for record in records], bins=edges)
    counts, _ = np.histogram(arrived, bins=edges)
    needed, _ = np.histogram(arrived, bins=edges, weights=seconds)
    work_s = np.maximum(asked * needed / np.maximum(counts, 1), 1e-9)
    shares: npt.NDArray[np.float64] = np.minimum(1.0, DEVICES * np.diff(edges) / work_s)
    return shares


def scenario_of(system: str, rate: float) -> Scenario:
    """Return MoDM's fleet under a system that plans as often as the live controller."""
    plain = mixture_scenario("modm", DEVICES, CACHE, CACHE, rate)
    settings = ServingSettings(
        heavy="large", small=("sdxl", "sana"), slo_s=SLO_S, batch_sizes=(1,), expected_per_s=rate, step_count=STEPS
    )
    return replace(plain, policy=POLICIES[system](settings), control_period_s=PERIOD_S)


def _content(count: int, seed: int) -> Content:
    return prompt_content(CACHE + count, CACHE, SLO_S, seed)


if __name__ == "__main__":
    raise SystemExit(main())
