"""One model on every device, and Proteus's shares of two: batches and devices, worked out by hand."""

from dataclasses import replace

import pytest

from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.entry import EVERY_START
from pentimento.policies.serving.settings import ModelQuality, ServingSettings
from pentimento.policies.serving.uniform import OneModel
from tests.unit.policies.serving.fleets import counts, decide, profiles, worker

# One, one and a half and two a second.
TABLE = {1: 1.0, 3: 2.0, 8: 4.0}


def asked(
    *demand: ModelDemand, devices: int = 3, memory: tuple[float, ...] = (), now_s: float = 0.0
) -> AllocationContext:
    views = tuple(worker(index, "sd15") for index in range(devices))
    table = profiles(sd15=TABLE, turbo={1: 0.25, 2: 0.4})
    return AllocationContext(now_s, views, demand, table, AllocationDecision(memory=memory))


def sizes(decision: AllocationDecision) -> set[int]:
    return {one.max_batch_size for one in decision.assignments}


@pytest.mark.parametrize(("slo_s", "size"), [(9.0, 8), (4.0, 8), (3.99, 3), (2.0, 3), (1.0, 1), (0.5, 1)])
def test_the_batch_is_the_largest_that_takes_no_longer_than_the_slo(slo_s: float, size: int) -> None:
    decision = decide(OneModel("sd15", slo_s, (1, 3, 8)), asked())

    assert (sizes(decision), decision.memory) == ({size}, (float(size),))
    assert [(pool.pool, len(pool.worker_ids), pool.routes) for pool in decision.pools] == [("sd15", 3, EVERY_START)]


def test_who_drains_another_model_is_in_no_pool_of_this_one() -> None:
    """Five wait for the light model: one worker holds it until they are done, as the plan's pools say."""
    views = tuple(worker(index, "turbo") for index in range(3))

    decision = decide(OneModel("sd15", 9.0), replace(asked(ModelDemand("turbo", 0.5, 5)), replicas=views))

    assert counts(decision) == {"turbo": 1, "sd15": 2}
    models = {one.worker_id: one.model for one in decision.assignments}
    assert {pool.model: {models[name] for name in pool.worker_ids} for pool in decision.pools} == {
        "sd15": {"sd15"},
        "turbo": {"turbo"},
    }


def test_without_a_choice_batches_are_of_one() -> None:
    assert sizes(decide(OneModel("sd15", 9.0), asked())) == {1}


SETTINGS = ServingSettings("sd15", "turbo", slo_s=6.0, overprovision=1.0, batch_sizes=(1, 3), expected_per_s=0.0)


def test_a_model_that_nobody_judged_is_as_good_as_its_place() -> None:
    settings = replace(SETTINGS, qualities=(ModelQuality("known", 0.4, 0.1, 0.2),))

    assert settings.quality_of("sd15") == ModelQuality("sd15", 1.0)
    assert settings.quality_of("turbo") == ModelQuality("turbo", 0.9)
    assert settings.quality_of("known") == ModelQuality("known", 0.4, 0.1, 0.2)
    assert (ModelQuality("m", 1.0).spread, ModelQuality("m", 1.0).reuse) == (0.0, 1.0)
