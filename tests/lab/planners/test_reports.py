"""Test policies of the lab with any reports of replicas."""

import pytest
from hypothesis import given, settings

from lab.planners.registry import LAB_POLICIES
from pentimento.domain.fleet import ModelCost, ReplicaReport
from tests.unit.controller.test_bad_input import EVENTS, SETTINGS, played


@pytest.mark.parametrize("name", ["proteus", "aimd"])
@settings(deadline=None, max_examples=10)
@given(told=EVENTS)
async def test_plan_of_any_reports_is_valid(name: str, told: list[ReplicaReport | ModelCost | float]) -> None:
    await played(LAB_POLICIES[name](SETTINGS), told)
