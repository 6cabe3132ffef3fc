"""Policies of two kinds of model where all devices of one kind have gone."""

from dataclasses import replace

import pytest

from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.entry import LATENT, NOISE, entry_of
from pentimento.policies.serving.joint_plan import slot_names
from pentimento.policies.serving.policy import SERVING_POLICIES
from pentimento.policies.serving.settings import ServingSettings
from tests.unit.policies.serving.fleets import SD15, TURBO, counts, decide, profiles, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=4.0)
POLICIES = ("diffserve", "modm")


def left_over(model: str, count: int = 4) -> AllocationContext:
    """Workers that can hold that model alone, and its costs: nobody reports those of the other."""
    known = profiles(turbo=TURBO) if model == "turbo" else profiles(sd15=SD15)
    views = tuple(worker(number, model, (model,)) for number in range(count))
    return AllocationContext(0.0, views, (ModelDemand("turbo", 4.0), ModelDemand("sd15", 1.0)), known)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_the_model_that_is_left_paints_alone_and_nothing_is_scored(policy: str, model: str) -> None:
    decision = decide(SERVING_POLICIES[policy](SETTINGS).allocator, left_over(model))

    assert counts(decision) == {model: 4}
    assert decision.cascades == ()
    for start in (NOISE, LATENT):
        entry = entry_of(decision.pools, start, 0.5)
        assert entry is not None and (entry.pool.model, entry.cascade) == (model, "")


@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_the_other_model_keeps_a_pool_for_those_who_wait_for_it(model: str) -> None:
    decision = decide(SERVING_POLICIES["diffserve"](SETTINGS).allocator, left_over(model))

    assert {pool.pool: len(pool.worker_ids) for pool in decision.pools if pool.model != model} == {
        ("sd15" if model == "turbo" else "turbo"): 0
    }


@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_the_joint_policy_keeps_all_pools_of_the_other_model(model: str) -> None:
    """One that a plan does not name says nothing to those who wait there."""
    decision = decide(SERVING_POLICIES["joint"](SETTINGS).allocator, left_over(model))

    lost = "sd15" if model == "turbo" else "turbo"
    pools = {pool.pool: (pool.model, pool.worker_ids, pool.routes) for pool in decision.pools if pool.model != model}
    assert counts(decision) == {model: 4}
    assert pools == dict.fromkeys(slot_names(lost), (lost, (), ()))


def test_of_several_small_models_the_best_that_is_left_paints_alone() -> None:
    settings = replace(SETTINGS, small=("middle", "turbo"))

    decision = decide(SERVING_POLICIES["modm"](settings).allocator, left_over("turbo"))

    assert counts(decision) == {"turbo": 4}
    assert {pool.pool for pool in decision.pools if not pool.worker_ids} == {"sd15", "middle"}


def test_registered_costs_of_a_model_that_nobody_can_hold_leave_no_device_without_work() -> None:
    registered = replace(left_over("turbo"), profiles=profiles(turbo=TURBO, sd15=SD15))

    decision = decide(SERVING_POLICIES["diffserve"](SETTINGS).allocator, registered)

    assert counts(decision) == {"turbo": 4}


def test_what_was_known_of_the_demand_is_known_when_the_other_model_is_back() -> None:
    allocator = SERVING_POLICIES["diffserve"](SETTINGS).allocator
    before = AllocationDecision(memory=(3.0, 1.0, 0.0))

    assert decide(allocator, replace(left_over("turbo"), last=before)).memory == before.memory
