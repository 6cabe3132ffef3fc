"""Plan one model on every device: alone, or where workers can hold no other."""

from dataclasses import replace

import pytest

from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.policies.plan.cascade import CascadeMemory
from pentimento.policies.plan.entry import EVERY_START, LATENT, NOISE, entry_of
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import UNNUMBERED, Decision, ModelDemand, PlanInput
from pentimento.policies.plan.joint.layout import pool_names
from pentimento.policies.plan.placement import OneModel
from pentimento.policies.plan.registry import SERVING_POLICIES
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, profiles, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=4.0)
# One, one and a half and two a second.
TABLE = {1: 1.0, 3: 2.0, 8: 4.0}


def asked(*demand: ModelDemand, devices: int = 3, memory: tuple[float, ...] = (), now_s: float = 0.0) -> PlanInput:
    views = tuple(worker(index, "sd15") for index in range(devices))
    table = profiles(sd15=TABLE, turbo={1: 0.25, 2: 0.4})
    return PlanInput(now_s, views, demand, table, Decision(memory=memory))


def sizes(decision: Decision) -> set[int]:
    return {one.max_batch_size for one in decision.plan.assignments}


@pytest.mark.parametrize(("slo_s", "size"), [(9.0, 8), (4.0, 8), (3.99, 3), (2.0, 3), (1.0, 1), (0.5, 1)])
def test_one_model_batch_is_largest_within_slo(slo_s: float, size: int) -> None:
    decision = decide(OneModel("sd15", slo_s, (1, 3, 8)), asked())

    assert sizes(decision) == {size}
    assert [(pool.pool, len(pool.worker_ids), pool.routes) for pool in decision.plan.pools] == [
        ("sd15", 3, EVERY_START)
    ]


def test_draining_worker_is_in_pool_of_its_model() -> None:
    """Five wait for the light model: one worker holds it until they are done, as the plan's pools say."""
    views = tuple(worker(index, "turbo") for index in range(3))

    decision = decide(OneModel("sd15", 9.0), replace(asked(ModelDemand("turbo", 0.5, 5)), replicas=views))

    assert counts(decision) == {"turbo": 1, "sd15": 2}
    models = {one.worker_id: one.model for one in decision.plan.assignments}
    assert {pool.model: {models[name] for name in pool.worker_ids} for pool in decision.plan.pools} == {
        "sd15": {"sd15"},
        "turbo": {"turbo"},
    }


def test_one_model_default_batch_is_one() -> None:
    assert sizes(decide(OneModel("sd15", 9.0), asked())) == {1}


def test_quality_of_unknown_model_depends_on_its_role() -> None:
    settings = replace(SETTINGS, qualities=(ModelQuality("known", 0.4, 0.1, 0.2),))

    assert settings.quality_of("sd15") == ModelQuality("sd15", 1.0)
    assert settings.quality_of("turbo") == ModelQuality("turbo", 0.9)
    assert settings.quality_of("known") == ModelQuality("known", 0.4, 0.1, 0.2)
    assert (ModelQuality("m", 1.0).spread, ModelQuality("m", 1.0).reuse) == (0.0, 1.0)


def test_one_model_decision_by_hand() -> None:
    """SD 1.5 takes 3.68 s for four images and 6.79 s for eight."""
    decision = decide(OneModel("sd15", 5.0, (1, 2, 4, 8)), context(2))

    assert decision == Decision(
        Plan(
            UNNUMBERED,
            (WorkerAssignment("w000", "sim:0", "sd15", 1, 4), WorkerAssignment("w001", "sim:1", "sd15", 1, 4)),
            (PoolPlan("sd15", "sd15", ("w000", "w001"), routes=EVERY_START),),
        ),
    )


POLICIES = ("diffserve", "modm")


def left_over(model: str, count: int = 4) -> PlanInput:
    """Return workers that can hold only this model, with its costs alone."""
    known = profiles(turbo=TURBO) if model == "turbo" else profiles(sd15=SD15)
    views = tuple(worker(number, model, (model,)) for number in range(count))
    return PlanInput(0.0, views, (ModelDemand("turbo", 4.0), ModelDemand("sd15", 1.0)), known)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_one_left_serves_alone_without_scores(policy: str, model: str) -> None:
    decision = decide(SERVING_POLICIES[policy](SETTINGS).allocator, left_over(model))

    assert counts(decision) == {model: 4}
    assert decision.plan.cascades == ()
    for start in (NOISE, LATENT):
        entry = entry_of(decision.plan.pools, start, 0.5)
        assert entry is not None and (entry.pool.model, entry.cascade) == (model, "")


@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_one_left_other_model_keeps_pool(model: str) -> None:
    decision = decide(SERVING_POLICIES["diffserve"](SETTINGS).allocator, left_over(model))

    assert {pool.pool: len(pool.worker_ids) for pool in decision.plan.pools if pool.model != model} == {
        ("sd15" if model == "turbo" else "turbo"): 0
    }


@pytest.mark.parametrize("model", ["turbo", "sd15"])
def test_joint_policy_keeps_pools_of_missing_model(model: str) -> None:
    """Requests that wait in a pool get no decision from a plan that omits it."""
    decision = decide(SERVING_POLICIES["joint"](SETTINGS).allocator, left_over(model))

    lost = "sd15" if model == "turbo" else "turbo"
    pools = {
        pool.pool: (pool.model, pool.worker_ids, pool.routes) for pool in decision.plan.pools if pool.model != model
    }
    assert counts(decision) == {model: 4}
    assert pools == dict.fromkeys(pool_names(lost), (lost, (), ()))


def test_one_left_best_small_model_serves_alone() -> None:
    settings = replace(SETTINGS, small=("middle", "turbo"))

    decision = decide(SERVING_POLICIES["modm"](settings).allocator, left_over("turbo"))

    assert counts(decision) == {"turbo": 4}
    assert {pool.pool for pool in decision.plan.pools if not pool.worker_ids} == {"sd15", "middle"}


def test_costs_of_missing_model_idle_no_device() -> None:
    registered = replace(left_over("turbo"), profiles=profiles(turbo=TURBO, sd15=SD15))

    decision = decide(SERVING_POLICIES["diffserve"](SETTINGS).allocator, registered)

    assert counts(decision) == {"turbo": 4}


def test_one_left_keeps_memory() -> None:
    allocator = SERVING_POLICIES["diffserve"](SETTINGS).allocator
    before = Decision(memory=CascadeMemory(3.0, 0.0, (FollowedCurve(SETTINGS.deferral),)))

    assert decide(allocator, replace(left_over("turbo"), last=before)).memory == before.memory
