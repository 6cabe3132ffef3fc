"""Time the joint policy's plans on sixteen devices, in simulated traces.

The time is the planning thread's. The simulated cache multiplies matrices, and its library's threads spin for a while
after each product, during any plan. Full garbage collections stay outside a plan, as in a service, where they wait for
a quiet moment: here they would traverse all that the simulation holds. The earlier reading, reported too, includes
both.
"""

import enum
import gc
import time
from dataclasses import dataclass, field, replace
from random import Random

from benchmarks import joint, slo_trace
from benchmarks.papers.systems import SHAPES
from lab.simulator import Scenario, Simulation
from lab.workloads import Workload
from pentimento.policies.plan.inputs import Decision, PlanInput, Policy
from pentimento.rpc.memory import NEVER

SYSTEM = "joint"
# Peak requests per second of `joint`'s mix: the best single paper's load, the joint policy's, and more.
PEAKS_PER_S = (0.9, 1.6, 2.4)


class LookReading(enum.Enum):
    """Select the reading of a plan: the clock, and the garbage collections that may fall into it, by the thresholds of
    the young and of all objects (None: unchanged)."""

    SERVICE = (time.thread_time, None, NEVER)
    WITHOUT_COLLECTIONS = (time.thread_time, 0, NEVER)
    WHOLE_PROCESS = (time.process_time, None, None)


@dataclass
class TimedAllocator:
    """Time an allocator's plans, which a run leaves behind. `took_ms`: processor milliseconds."""

    allocator: Policy
    reading: LookReading
    took_ms: list[float] = field(default_factory=list)

    def __call__(self, context: PlanInput) -> Decision:
        clock, *bounds = self.reading.value
        young, middle, old = gc.get_threshold()
        wanted = [kept if bound is None else bound for bound, kept in zip(bounds, (young, old), strict=True)]
        gc.set_threshold(wanted[0], middle, wanted[1])
        began_s = clock()
        decision = self.allocator(context)
        self.took_ms.append((clock() - began_s) * 1e3)
        gc.set_threshold(young, middle, old)
        return decision


def looks_ms(quick: bool, reading: LookReading) -> list[float]:
    """Return the processor milliseconds of every plan: cascades and batches of six sizes in the traces of `slo_trace`;
    three models, hits and loads in those of `joint`."""
    peak = slo_trace.ABOVE * slo_trace.static_capacity_per_s(slo_trace.CASCADE)
    found: list[float] = []
    for seed, name in enumerate(list(SHAPES)[: 1 if quick else None], start=1):
        segment_s = 0.5 if quick else 4.0
        load = slo_trace.trace_load(SHAPES[name], peak / slo_trace.SWING, peak, segment_s, seed)
        found += _timed(slo_trace.scenario_of(SYSTEM, peak), load, seed, reading)
    for seed, rate in enumerate(PEAKS_PER_S[: 1 if quick else None], start=1):
        load = joint.workload_of(joint.Trace("azure", seed), rate, joint.SEGMENT_S / (32 if quick else 3))
        found += _timed(joint.scenario_of(SYSTEM, rate), load, seed, reading)
    return found


def _timed(scenario: Scenario, load: Workload, seed: int, reading: LookReading) -> list[float]:
    """Return the milliseconds of all plans but the first, which loads the solver."""
    timed = TimedAllocator(scenario.policy.allocator, reading)
    Simulation(replace(scenario, policy=replace(scenario.policy, allocator=timed)), load, Random(seed)).run()
    return timed.took_ms[1:]
