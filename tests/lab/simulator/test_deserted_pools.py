"""Test requests that wait in a pool without workers after a later plan."""

from dataclasses import replace

from lab.runs import Outcome
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.policies.plan.entry import EVERY_START
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, PlanInput
from pentimento.policies.plan.registry import ServingPolicy
from tests.lab.simulator.scenarios import arrivals, cascade, run


def heavy_then_light(context: PlanInput) -> Decision:
    """Plan the heavy model for every request, and the light one instead after a second."""
    model, other = ("sd15", "turbo") if context.now_s < 1.0 else ("turbo", "sd15")
    (worker,) = context.workers()
    pools = (PoolPlan(model, model, (worker.instance_id,), EVERY_START), PoolPlan(other, other, ()))
    return Decision(
        Plan(UNNUMBERED, (WorkerAssignment(worker.instance_id, worker.address, model, worker.generation, 1),), pools)
    )


def test_who_waits_for_a_model_that_is_planned_no_more_goes_where_others_go() -> None:
    policy = ServingPolicy("heavy-then-light", heavy_then_light)
    scenario = replace(cascade("static-cascade", devices=1, load_s=0.5), policy=policy, control_period_s=1.0)

    first, *_, last = run(scenario, arrivals([0.5, 0.6, 0.7, 0.8], deadline_s=60.0))

    assert (first.outcome, first.model) == (Outcome.COMPLETED, "sd15")
    assert (last.outcome, last.model) == (Outcome.COMPLETED, "turbo")
