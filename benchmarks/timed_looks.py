"""What the joint policy's looks cost on sixteen devices: every plan that it makes in simulated traces.

The time is that of the thread that looks. The process has others: the simulated cache multiplies matrices, and for a
while after each the threads of the library that does so wait at full speed for more, beside whoever looks then. Full
collections of garbage do not fall into a look, as in a service, where they wait for a quiet moment: here they go
through all that the simulation holds.
"""

import gc
import time
from dataclasses import replace
from random import Random

from benchmarks import joint, slo_trace
from pentimento.policies.allocation import AllocationContext, AllocationDecision, Allocator
from pentimento.rpc.full_collections import NEVER
from pentimento.simulator import Scenario, Simulation
from pentimento.workloads import Workload

SYSTEM = "joint"
# Requests a second at the peak of `joint`'s mix: what the best single paper carries, what the joint policy does, more.
PEAKS_PER_S = (0.9, 1.6, 2.4)


class TimedAllocator:
    """An allocator whose looks are timed: state that a run leaves behind. `took_ms`: processor milliseconds of its
    thread. Not `collects`: no garbage is collected meanwhile."""

    def __init__(self, allocator: Allocator, collects: bool) -> None:
        self._allocator = allocator
        self._collects = collects
        self.took_ms: list[float] = []

    def __call__(self, context: AllocationContext) -> AllocationDecision:
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young if self._collects else 0, middle, NEVER)
        began_s = time.thread_time()
        decision = self._allocator(context)
        self.took_ms.append((time.thread_time() - began_s) * 1e3)
        gc.set_threshold(young, middle, old)
        return decision


def looks_ms(quick: bool, collects: bool = True) -> list[float]:
    """Return the processor milliseconds of every look: cascades and batches of six sizes in the traces of `slo_trace`;
    three models, hits and loads in those of `joint`. Not `collects`: without the collector of garbage."""
    peak = slo_trace.ABOVE * slo_trace.static_capacity_per_s(slo_trace.CASCADE)
    found: list[float] = []
    for seed, name in enumerate(list(slo_trace.SHAPES)[: 1 if quick else None], start=1):
        segment_s = 0.5 if quick else 4.0
        load = slo_trace.trace_load(slo_trace.SHAPES[name], peak / slo_trace.SWING, peak, segment_s, seed)
        found += _timed(slo_trace.scenario_of(SYSTEM, peak), load, seed, collects)
    for seed, rate in enumerate(PEAKS_PER_S[: 1 if quick else None], start=1):
        load = joint.workload_of(seed, rate, joint.SEGMENT_S / (32 if quick else 3))
        found += _timed(joint.scenario_of(SYSTEM, rate), load, seed, collects)
    return found


def _timed(scenario: Scenario, load: Workload, seed: int, collects: bool) -> list[float]:
    """The first look is left out: it loads the solver."""
    timed = TimedAllocator(scenario.policy.allocator, collects)
    Simulation(replace(scenario, policy=replace(scenario.policy, allocator=timed)), load, Random(seed)).run()
    return timed.took_ms[1:]
