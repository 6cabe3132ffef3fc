"""Decisions of the allocators, and the check that every decision passes before it becomes a plan."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan, PoolPlan, Replica, ReplicaKind, RouteShare, WorkerAssignment
from pentimento.policies.plan.inputs import (
    UNNUMBERED,
    Decision,
    PlanInput,
    ReplicaView,
    hold_resident,
)
from pentimento.policies.plan.maker import check_decision


def worker(name: str, *models: str, generation: int = 1) -> ReplicaView:
    kind = ReplicaKind.UNET_WORKER
    return ReplicaView(Replica(name, kind, f"unix:/{name}", generation, resident_models=models))


NOTHING = Decision()


def context(*views: ReplicaView, last: Decision = NOTHING) -> PlanInput:
    return PlanInput(0.0, views, last=last)


workers = st.lists(
    st.builds(
        lambda number, models, generation: worker(f"w{number}", *models, generation=generation),
        st.integers(0, 30),
        st.lists(st.sampled_from(["heavy", "light", "turbo"]), unique=True),
        st.integers(1, 5),
    ),
    unique_by=lambda view: view.replica.instance_id,
)


def test_worker_is_assigned_the_model_it_holds():
    decision = hold_resident(context(worker("w1", "heavy", generation=3)))

    assert decision.plan.assignments == (WorkerAssignment("w1", "unix:/w1", "heavy", 3),)


def test_there_is_a_pool_a_model():
    decision = hold_resident(context(worker("w2", "light"), worker("w1", "heavy"), worker("w3", "light")))

    assert decision.plan.pools == (PoolPlan("heavy", "heavy", ("w1",)), PoolPlan("light", "light", ("w2", "w3")))


def test_worker_without_a_model_is_left_out():
    assert hold_resident(context(worker("w1"))) == NOTHING


def test_other_services_get_no_model():
    embedder = ReplicaView(Replica("e1", ReplicaKind.EMBEDDER, "unix:/e1", 1, resident_models=("clip",)))

    assert hold_resident(context(embedder)) == NOTHING


def test_resident_loras_are_no_models():
    with_lora = worker("w1", "heavy", "neon")

    assert [one.model for one in hold_resident(context(with_lora)).plan.assignments] == ["heavy"]
    with pytest.raises(ValueError, match="cannot serve neon"):
        check_decision(context(with_lora), Decision(Plan(UNNUMBERED, (WorkerAssignment("w1", "unix:/w1", "neon", 1),))))


@given(workers, st.randoms(use_true_random=False))
def test_hold_resident_ignores_worker_order(views, random):
    shuffled = list(views)
    random.shuffle(shuffled)

    assert hold_resident(context(*views)) == hold_resident(context(*shuffled))


@given(workers)
def test_hold_resident_decision_is_valid(views):
    decision = hold_resident(context(*views))

    check_decision(context(*views), decision)
    holding = [view.replica.instance_id for view in views if view.replica.resident_models]
    assert sorted(name for pool in decision.plan.pools for name in pool.worker_ids) == sorted(holding)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -0.1, 1.1])
def test_share_outside_0_to_1_is_refused(rate):
    with pytest.raises(InvalidArgument, match="admission_rate: must be between 0 and 1"):
        check_decision(context(), Decision(Plan(UNNUMBERED, admission_rate=rate)))
    with pytest.raises(InvalidArgument, match=r"pools\[0\].routes\[0\].share: must be between 0 and 1"):
        check_decision(
            context(), Decision(Plan(UNNUMBERED, pools=(PoolPlan("p", "m", (), routes=(RouteShare("noise", rate),)),)))
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"worker_id": "w9"}, "not the live one"),
        ({"generation": 1}, "not the live one"),
        ({"address": "unix:/elsewhere"}, "not the live one"),
        ({"model": "light"}, "cannot serve"),
        ({"max_batch_size": -1}, "at least 0"),
    ],
)
def test_check_decision_refuses_other_worker(change, message):
    assignment = WorkerAssignment("w1", "unix:/w1", "heavy", 2)

    with pytest.raises((ValueError, InvalidArgument), match=message):
        check_decision(
            context(worker("w1", "heavy", generation=2)), Decision(Plan(UNNUMBERED, (replace(assignment, **change),)))
        )


def test_worker_assigned_twice_is_refused():
    fleet = context(worker("w1", "heavy"))
    twice = (WorkerAssignment("w1", "unix:/w1", "heavy", 1),) * 2

    with pytest.raises(InvalidArgument, match="assignments: must have names of their own, got 'w1'"):
        check_decision(fleet, Decision(Plan(UNNUMBERED, twice)))


def test_pool_of_unassigned_workers_is_refused():
    with pytest.raises(ValueError, match="unassigned"):
        check_decision(
            context(worker("w1", "heavy")), Decision(Plan(UNNUMBERED, pools=(PoolPlan("p", "heavy", ("w1",)),)))
        )
