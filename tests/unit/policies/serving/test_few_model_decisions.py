"""Decisions of policies of one model: batches that fit the time."""

from pentimento.domain.fleet import (
    PoolPlan,
    WorkerAssignment,
)
from pentimento.policies.allocation import (
    AllocationDecision,
)
from pentimento.policies.serving.entry import (
    EVERY_START,
)
from pentimento.policies.serving.settings import ServingSettings
from pentimento.policies.serving.uniform import OneModel
from tests.unit.policies.serving.fleets import context, decide

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)


def test_one_model_takes_every_device_and_the_largest_batch_in_time() -> None:
    """Of SD 1.5 four take 3.68 s, eight 6.79 s."""
    decision = decide(OneModel("sd15", 5.0, (1, 2, 4, 8)), context(2))

    assert decision == AllocationDecision(
        (WorkerAssignment("w000", "sim:0", "sd15", 1, 4), WorkerAssignment("w001", "sim:1", "sd15", 1, 4)),
        (PoolPlan("sd15", "sd15", ("w000", "w001"), routes=EVERY_START),),
        memory=(4.0,),
    )


def test_one_model_that_is_never_in_time_runs_the_smallest_batch() -> None:
    assert decide(OneModel("sd15", 0.5, (2, 4)), context(1)).assignments[0].max_batch_size == 2


def test_one_model_is_planned_in_batches_of_one_that_do_not_grow_where_nobody_says_more() -> None:
    assert OneModel("sd15", 5.0) == OneModel("sd15", 5.0, (1,))


def test_a_batch_of_one_model_that_takes_just_the_slo_is_in_time() -> None:
    assert decide(OneModel("sd15", 3.68, (1, 2, 4, 8)), context(1)).assignments[0].max_batch_size == 4
