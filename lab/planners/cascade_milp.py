"""DiffServe's allocation problem as the paper solves it (section 3.3): a mixed integer linear program.

Choices are variables of 0 or 1: y1[b] and y2[b] for the batch sizes. x1[b] and x2[b] are the devices with batches of b.
f is monotone, so the largest share d that can be deferred gives the largest threshold: max d with D * d <= sum of
x2[b] * T2(b), then the largest t with f(t) <= d. `solve_cascade` finds the same threshold by enumeration, faster; tests
compare the two.
"""

import bisect
from collections.abc import Sequence

from pentimento.policies.plan.cascade_problem import CascadeProblem, CascadeSolution, first_stage_alone
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.solver import LinearProgram

# Among plans that defer equally many, prefer the one with more spare light devices.
_SPARE_WEIGHT = 1e-5
# A solver of floating-point numbers keeps constraints within a millionth.
_TOLERANCE = 1e-6


def solve_by_milp(problem: CascadeProblem) -> CascadeSolution:
    """Return a solution of a cascade of two models with the largest threshold; where no choice keeps all constraints,
    everything is light (`first_stage_alone`)."""
    (curve,), (light_costs, heavy_costs) = problem.curves, problem.stages
    program = LinearProgram()
    shares = [curve.share(threshold) for threshold in problem.thresholds]
    spare = _SPARE_WEIGHT / (max(problem.device_count, 1) * max(cost.throughput for cost in light_costs))
    light = _Pool(program, light_costs, problem.device_count, spare)
    heavy = _Pool(program, heavy_costs, problem.device_count)
    deferred = program.variable(1.0, shares[-1])
    program.require([(deferred, 1.0)], at_least=shares[0])
    program.require([*light.devices(), *heavy.devices()], at_most=problem.device_count)
    program.require(light.capacity(), at_least=problem.demand)
    program.require([*heavy.capacity(), (deferred, -problem.demand)], at_least=0.0)
    # Eq. 1: e(b1) + q(b1) + e(b2) + q(b2) <= L.
    program.require([*light.seconds(), *heavy.seconds()], at_most=problem.slo_s - problem.discriminator_s)
    solved = program.solve()
    if solved is None:
        return first_stage_alone(problem)
    values = solved.values
    index = max(bisect.bisect_right(shares, values[deferred] + _TOLERANCE) - 1, 0)
    threshold, share = problem.thresholds[index], shares[index]
    light_count = round(light.count(values)) if share > 0.0 else problem.device_count
    return CascadeSolution(
        (light_count, problem.device_count - light_count),
        (light.chosen(values).batch_size, heavy.chosen(values).batch_size),
        (1.0, share),
        (threshold,),
    )


class _Pool:
    """The variables of one model: which batch size, and how many devices."""

    def __init__(self, program: LinearProgram, costs: Sequence[BatchCost], device_count: int, spare: float = 0.0):
        self._costs = costs
        self._choices = [program.variable(high=1.0, integer=True) for _ in costs]
        self._devices = [program.variable(spare * cost.throughput, device_count, integer=True) for cost in costs]
        program.require(((choice, 1.0) for choice in self._choices), 1.0, 1.0)
        for choice, devices in zip(self._choices, self._devices, strict=True):
            program.require([(devices, 1.0), (choice, -device_count)], at_most=0.0)

    def devices(self) -> list[tuple[int, float]]:
        return [(devices, 1.0) for devices in self._devices]

    def capacity(self) -> list[tuple[int, float]]:
        return [(devices, cost.throughput) for devices, cost in zip(self._devices, self._costs, strict=True)]

    def seconds(self) -> list[tuple[int, float]]:
        return [(choice, cost.felt_s) for choice, cost in zip(self._choices, self._costs, strict=True)]

    def chosen(self, values: Sequence[float]) -> BatchCost:
        return self._costs[max(range(len(self._costs)), key=lambda index: values[self._choices[index]])]

    def count(self, values: Sequence[float]) -> float:
        return sum(values[devices] for devices in self._devices)
