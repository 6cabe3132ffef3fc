"""Plans are numbered when they change, and stand when an allocator fails."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.fleet import Replica, ReplicaKind, ServiceEndpoint
from pentimento.domain.generation import PlanVersion
from pentimento.policies.allocation import AllocationContext, AllocationDecision, ReplicaView, hold_resident
from services.controller.planner import Planner

WORKER = ReplicaView(Replica("w1", ReplicaKind.UNET_WORKER, "unix:/w1", 1, resident_models=("heavy",)))
EMBEDDER = ReplicaView(Replica("e1", ReplicaKind.EMBEDDER, "unix:/e1", 1))
EMPTY, ONE = AllocationContext(0.0, ()), AllocationContext(0.0, (WORKER,))


def failures(allocator: str) -> float:
    name = "pentimento_controller_allocation_failures_total"
    return REGISTRY.get_sample_value(name, {"allocator": allocator}) or 0.0


@pytest.fixture
def planner() -> Planner:
    return Planner(hold_resident, "resident", leader_epoch=5)


def test_the_first_plan_is_issued_even_for_an_empty_fleet(planner):
    plan = planner.replan(EMPTY)

    assert plan is not None
    assert plan.version == PlanVersion(5, 1)


def test_a_plan_that_says_the_same_is_not_issued_again(planner):
    planner.replan(ONE)

    assert planner.replan(ONE) is None
    assert planner.plan.version == PlanVersion(5, 1)


def test_every_change_gets_the_next_number(planner):
    versions = [planner.replan(context).version.sequence for context in (EMPTY, ONE, EMPTY)]

    assert versions == [1, 2, 3]


def test_the_plan_lists_where_the_other_services_are(planner):
    plan = planner.replan(AllocationContext(0.0, (WORKER, EMBEDDER)))

    assert plan.endpoints == (ServiceEndpoint(ReplicaKind.EMBEDDER, "e1", "unix:/e1"),)


def test_a_newer_epoch_issues_the_plan_anew(planner):
    planner.replan(ONE)

    planner.rise_to(9)

    assert planner.replan(ONE).version == PlanVersion(9, 1)


def raising(context: AllocationContext) -> AllocationDecision:
    raise ZeroDivisionError


def nonsensical(context: AllocationContext) -> AllocationDecision:
    return replace(hold_resident(context), admission_rate=float("nan"))


@pytest.mark.parametrize("bad", [raising, nonsensical])
def test_the_last_good_plan_stands_when_an_allocator_fails_and_a_metric_says_so(bad):
    turns: list[Callable[[AllocationContext], AllocationDecision]] = [hold_resident, bad, bad, hold_resident]
    planner = Planner(lambda context: turns.pop(0)(context), bad.__name__, leader_epoch=5)
    good = planner.replan(ONE)

    assert planner.replan(EMPTY) is None
    assert planner.replan(EMPTY) is None
    assert planner.plan == good
    assert failures(bad.__name__) == 2
    assert planner.replan(EMPTY).version == PlanVersion(5, 2)


def test_an_allocator_finds_again_what_it_decided_last():
    seen = []

    def remembering(context: AllocationContext) -> AllocationDecision:
        seen.append(context.last.memory)
        return AllocationDecision(memory=(*context.last.memory, 1.0))

    planner = Planner(remembering, "remembering", leader_epoch=5)
    planner.replan(EMPTY)
    planner.replan(EMPTY)

    assert seen == [(), (1.0,)]
