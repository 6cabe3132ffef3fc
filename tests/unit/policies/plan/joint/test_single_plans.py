"""Plan by the routes of single papers, as parts of the allocation problem."""

import pytest

from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.joint.policy import JointPolicy
from pentimento.policies.plan.joint.problem import (
    CASCADE,
    HEAVY_ONLY,
    LIGHT_ONLY,
    MIXTURE,
    AllocationProblem,
    AllocationSolution,
    Component,
    PlannedRoute,
    Use,
    single_plans,
)
from pentimento.policies.plan.joint.program import AllocationProgram
from pentimento.policies.plan.settings import ServingSettings

COMPONENTS = [Component(name, {"gpu": (BatchCost(1, s, s),)}) for name, s in (("heavy", 1.0), ("light", 0.1))]
ROUTES = [
    PlannedRoute("noise:heavy", "noise", (Use("heavy", 1.0),), 1.0),
    PlannedRoute("noise:light", "noise", (Use("light", 1.0),), 0.8),
    PlannedRoute("noise:light>heavy", "noise", (Use("light", 1.0), Use("heavy", 0.5)), 0.92),
    PlannedRoute("image:heavy", "image", (Use("heavy", 0.5),), 0.95),
    PlannedRoute("image:light", "image", (Use("light", 0.5),), 0.9),
]


def problem(noise: float, image: float) -> AllocationProblem:
    return AllocationProblem({"noise": noise, "image": image}, {"gpu": 4}, COMPONENTS, ROUTES, 10.0)


def solved(asked: AllocationProblem) -> AllocationSolution | None:
    return AllocationProgram(asked).search(0.0, 10_000, may_load=True)


def test_single_plans_have_routes_of_their_paper() -> None:
    found = single_plans(problem(1.0, 1.0), "heavy", "light")

    assert {name: [route.name for route in plan.routes] for name, plan in found.items()} == {
        HEAVY_ONLY: ["noise:heavy", "image:heavy"],
        LIGHT_ONLY: ["noise:light", "image:light"],
        CASCADE: ["noise:light", "noise:light>heavy", "image:light"],
        MIXTURE: ["noise:heavy", "image:heavy", "image:light"],
    }


def test_single_plans_omit_plans_missing_a_start() -> None:
    routes = [route for route in ROUTES if route.name != "noise:heavy"]
    found = single_plans(AllocationProblem({"noise": 1.0}, {"gpu": 4}, COMPONENTS, routes, 10.0), "heavy", "light")

    assert set(found) == {LIGHT_ONLY, CASCADE}


@pytest.mark.parametrize(("noise", "image"), [(1.0, 1.0), (3.0, 2.0), (6.0, 10.0), (30.0, 20.0)])
def test_joint_plan_is_never_below_a_single_one(noise: float, image: float) -> None:
    asked = problem(noise, image)
    joint = solved(asked)
    singles = [solved(one) for one in single_plans(asked, "heavy", "light").values()]

    assert joint is not None
    assert all(single is None or joint.objective >= single.objective - 1e-6 for single in singles)


def test_best_single_replaces_unfinished_search() -> None:
    """Four devices of the heavy model carry three a second from noise, and two hits that take half of a run."""
    allocator = JointPolicy(ServingSettings(heavy="heavy", light="light", slo_s=10.0))
    asked = problem(3.0, 2.0)
    poor = solved(single_plans(asked, "heavy", "light")[LIGHT_ONLY])

    found = allocator._best_single(asked, poor)

    assert poor is not None and found is not None
    assert (poor.objective, found.objective) == pytest.approx((3 * 10.8 + 2 * 10.9, 3 * 11.0 + 2 * 10.95), abs=1e-3)
