"""Test that the simulator's plans equal the live controller's."""

from dataclasses import replace

import pytest

from lab.simulator.controller import SimulatedController
from pentimento.domain.fleet import Plan
from pentimento.policies.plan.inputs import Decision, PlanInput
from services.controller.planner import Planner
from tests.lab.simulator.scenarios import cascade, poisson, run


@pytest.mark.parametrize("policy", ["resident", "diffserve", "vanilla", "static-threshold", "modm", "joint"])
async def test_simulated_plans_are_those_of_the_live_planner(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[PlanInput] = []
    simulated: list[Plan] = []

    class RecordedController(SimulatedController):
        def plan(self, now_s: float, moves: bool = True) -> Plan | None:
            plan = super().plan(now_s, moves)
            simulated.extend([plan] if plan is not None else [])
            return plan

    monkeypatch.setattr("lab.simulator.simulation.SimulatedController", RecordedController)
    scenario = cascade(policy, 4, rate=2.0)
    played = scenario.policy

    def recording(seen: PlanInput) -> Decision:
        given.append(seen)
        return played.allocator(seen)

    run(replace(scenario, policy=replace(played, allocator=recording)), poisson(2.0, 40))
    planner = Planner(played, leader_epoch=1, allocator_limit_s=60.0)
    planner.begin()
    live = [plan for seen in given if (plan := await planner.look(seen)) is not None]

    assert simulated == live
    assert len(given) > 3
