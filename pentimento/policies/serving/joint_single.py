"""The plans of single papers as parts of the joint problem: the same problem with fewer routes.

Whatever a joint search finds within its limit, the best plan of a single paper is at hand beside it, weighed by the
same estimates.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pentimento.policies.serving.entry import IMAGE
from pentimento.policies.serving.joint_problem import JointProblem, PaintingRoute

HEAVY_ONLY, LIGHT_ONLY, CASCADE, MIXTURE = "heavy only", "light only", "cascade", "mixture"


def single_plans(problem: JointProblem, heavy: str, light: str) -> Mapping[str, JointProblem]:
    """Return the problem by plan: every start by one model, DiffServe's cascade, MoDM's mixture. Plans that leave a
    start without a route are left out."""
    allowed: Mapping[str, Callable[[PaintingRoute], bool]] = {
        HEAVY_ONLY: lambda route: _models(route) == (heavy,),
        LIGHT_ONLY: lambda route: _models(route) == (light,),
        CASCADE: lambda route: _models(route) in ((light,), (light, heavy)),
        MIXTURE: lambda route: len(route.uses) == 1 and (route.start == IMAGE or _models(route) == (heavy,)),
    }
    plans = {name: _with_routes(problem, is_allowed) for name, is_allowed in allowed.items()}
    starts = {route.start for route in problem.routes}
    return {name: plan for name, plan in plans.items() if {route.start for route in plan.routes} == starts}


def _models(route: PaintingRoute) -> tuple[str, ...]:
    return tuple(use.component for use in route.uses)


def _with_routes(problem: JointProblem, is_allowed: Callable[[PaintingRoute], bool]) -> JointProblem:
    """Room and backlogs are carried by any plan."""
    kept = [route for route in problem.routes if route.start in problem.rooms or is_allowed(route)]
    return replace(problem, routes=kept)
