"""Test when the joint allocator keeps the models on devices and when it loads, with scripted searches."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Plan, WorkerAssignment
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, ModelDemand, PlanInput
from pentimento.policies.plan.joint import policy
from pentimento.policies.plan.joint.forecast import DemandForecast
from pentimento.policies.plan.joint.policy import JointMemory, JointPolicy
from pentimento.policies.plan.joint.problem import AllocationProblem, AllocationSolution, Component, PlannedRoute, Use
from pentimento.policies.plan.joint.quality import LearntQuality
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import SD15, context, profiles

ALLOCATOR = JointPolicy(ServingSettings(heavy="heavy"))
# Four requests a second, each worth at best the weight of a served request plus its quality: 4 * (10 + 1).
BEST = 44.0


def problem(load_s: float) -> AllocationProblem:
    heavy = Component("heavy", {"gpu": (BatchCost(1, 1.0),)}, load_s)
    return AllocationProblem(
        {"noise": 4.0}, {"gpu": 4}, (heavy,), (PlannedRoute("r", "noise", (Use("heavy", 1.0),), 1.0),), 5.0
    )


def plan(objective: float, served_share: float = 1.0) -> AllocationSolution:
    return AllocationSolution({}, {}, served_share, objective)


class Searches:
    """Return the given solution of a search without loads and of one with, and record its arguments."""

    def __init__(self, found: Mapping[bool, AllocationSolution | None]) -> None:
        self.found = found
        self.asked: list[tuple[float, int, bool, float | None]] = []

    def search(self, gap: float, most: int, may_load: bool, above: float | None = None) -> AllocationSolution | None:
        self.asked.append((gap, most, may_load, above))
        return self.found[may_load]


def solved(
    monkeypatch: pytest.MonkeyPatch,
    stays: AllocationSolution | None,
    loads: AllocationSolution | None,
    load_s: float = 1.0,
    may_load: bool = True,
) -> tuple[tuple[AllocationSolution, bool], Searches]:
    searches = Searches({False: stays, True: loads})
    monkeypatch.setattr(policy, "AllocationProgram", lambda asked: searches)
    assert problem(load_s).bound == BEST
    return ALLOCATOR._solve(problem(load_s), may_load), searches


@pytest.mark.parametrize(
    ("load_s", "short", "stays"),
    [
        (6.0, 0.0119, True),
        (6.0, 0.0121, False),
        (1.0, 0.00399, True),
        (1.0, 0.00401, False),
        (0.0, 0.00399, True),
        (0.0, 0.00401, False),
    ],
)
def test_solve_load_must_gain_by_its_seconds(
    load_s: float, short: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, loaded = plan(BEST - short), plan(BEST)

    found, searches = solved(monkeypatch, held, loaded, load_s)

    assert found == ((held, True) if stays else (loaded, False))
    above = held.objective + 4.0 * max(0.001, 0.0005 * load_s)
    assert searches.asked == [(1e-6, 300, False, None), (1e-6, 300, True, pytest.approx(above))][: 1 if stays else 2]


@pytest.mark.parametrize(("served_share", "stays"), [(1.0, True), (0.991, True), (0.99, False), (0.5, False)])
def test_solve_within_dwell_time_keeps_models_while_served(
    served_share: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, loaded = plan(1.0, served_share), plan(BEST)

    assert solved(monkeypatch, held, loaded, may_load=False)[0] == (held if stays else loaded, False)
    assert solved(monkeypatch, held, loaded, may_load=True)[0] == (loaded, False)


def test_solve_without_gain_keeps_models() -> None:
    with pytest.MonkeyPatch.context() as patch:
        held = plan(1.0)
        assert solved(patch, held, None)[0] == (held, False)


def test_solve_without_any_plan_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    found, searches = solved(monkeypatch, None, plan(2.0))
    assert (found, searches.asked[1]) == ((plan(2.0), False), (1e-6, 300, True, -math.inf))

    with pytest.raises(FailedPrecondition, match="no plan was found in 300 steps of the search") as refused:
        solved(monkeypatch, None, None)
    assert refused.value.reason == "NO_PLAN"


@pytest.mark.parametrize(("load_s", "dwell_s"), [((0.0,), 0.0), ((1.0, 3.0), 18.0), ((5.0,), 30.0), ((60.0,), 30.0)])
def test_dwell_time_is_six_loads_or_half_a_minute(load_s: tuple[float, ...], dwell_s: float) -> None:
    assert ALLOCATOR._dwell_s([Component(str(number), {}, seconds) for number, seconds in enumerate(load_s)]) == dwell_s


def test_joint_policy_defaults() -> None:
    assert (ALLOCATOR.horizon_s, ALLOCATOR.dwell_s) == (60.0, 30.0)


@pytest.mark.parametrize(("starts", "noise"), [(("noise",), 6.0), (("noise", "near surge"), 4.0)])
def test_problem_without_quick_model_overprovisions(starts: tuple[str, ...], noise: float) -> None:
    allocator = JointPolicy(ServingSettings(heavy="heavy", slo_s=5.0, overprovision=1.5))
    routes = [PlannedRoute(start, start, (Use("heavy", 1.0),), 1.0) for start in starts]
    demand = DemandForecast(rate=4.0, trend=1.0)

    found = allocator._problem(PlanInput(0.0, ()), {}, [Component("heavy", {})], routes, demand)

    assert found.demand["noise"] == pytest.approx(noise)
    assert found.demand["latent"] == found.demand["image"] == 1e-3
    # They may wait for half of the SLO, and devices change and load for a minute.
    assert found.demand["near surge"] == pytest.approx((0.2 - 0.5 * 5.0 / 60.0) * noise)


def test_problem_demand_is_that_after_longest_load() -> None:
    allocator = JointPolicy(ServingSettings(heavy="heavy"))
    components = [Component("light", {}, 1.0), Component("heavy", {}, 3.0)]
    route = PlannedRoute("r", "near surge", (Use("heavy", 1.0),), 1.0)

    found = allocator._problem(PlanInput(0.0, ()), {}, components, [route], DemandForecast(rate=4.0, trend=0.5))

    assert found.demand["noise"] == pytest.approx(5.5)


@pytest.mark.parametrize(
    ("seconds_ago", "is_enough", "may_move"), [(60.0, True, True), (60.0, False, False), (5.0, True, False)]
)
def test_spare_devices_move_after_dwell_time(
    seconds_ago: float, is_enough: bool, may_move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(policy, "lay_out", lambda *_, may_load: told.append(may_load) or Plan(UNNUMBERED))
    monkeypatch.setattr(JointPolicy, "_solve", lambda allocator, problem, may_load: (plan(BEST), is_enough))
    slow = tuple(replace(profile, load_s=10.0) for profile in profiles(sd15=SD15))
    demand = DemandForecast(rate=4.0, moved_at_s=100.0 - seconds_ago, at_s=95.0)
    last = Decision(memory=JointMemory(demand, LearntQuality.empty(ServingSettings(heavy="sd15"))))
    asked = replace(context(4, ModelDemand("sd15", 4.0), now_s=100.0), profiles=slow, last=last)

    JointPolicy(ServingSettings(heavy="sd15"))(asked)

    assert told == [may_move]


def test_moved_at_changes_with_any_model() -> None:
    def assigned(*models: str) -> Plan:
        workers = (WorkerAssignment(f"w{number}", "", model, 1) for number, model in enumerate(models))
        return Plan(UNNUMBERED, tuple(workers))

    demand = DemandForecast(moved_at_s=3.0)
    held = PlanInput(9.0, (), last=Decision(assigned("a", "b")))
    found = [
        ALLOCATOR._moved_at_s(held, plan, demand)
        for plan in (assigned("a", "b"), assigned("a"), assigned("a", "b", "c"), assigned("a", "c"))
    ]

    assert found == [3.0, 3.0, 3.0, 9.0]
