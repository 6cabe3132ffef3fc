"""Plan by every named policy, for any demand and any fleet; enter its pools."""

from dataclasses import replace

import pytest

from pentimento.domain.fleet import PoolPlan, RouteShare
from pentimento.domain.models import CascadeVariant, Handover
from pentimento.policies.plan.entry import NOISE, SPARE, EnteredPool, StartCandidate, entry_of, start_lanes
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, Policy
from pentimento.policies.plan.registry import SERVING_POLICIES, registered_cascade
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, profiles, repeat, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)


HALVES = (
    PoolPlan("light", "turbo", ("w0",), routes=(RouteShare(NOISE, 0.75),)),
    PoolPlan("heavy", "sd15", ("w1",), routes=(RouteShare(NOISE, 0.25), RouteShare(SPARE, 1.0))),
)


ALONE = PoolPlan("light", "turbo", ("w0",), routes=(RouteShare("noise", 1.0),))


@pytest.mark.parametrize("name", sorted(SERVING_POLICIES.keys() - {"resident", "many-models"}))
@pytest.mark.parametrize("rate", [0.0, 3.0, 3000.0])
def test_policy_plans_for_any_demand(name: str, rate: float) -> None:
    policy = SERVING_POLICIES[name](SETTINGS)

    decision, _ = repeat(policy.allocator, context(16, ModelDemand("turbo", rate), ModelDemand("sd15", rate)), 5, 5.0)

    assert policy.name == name
    assert sum(counts(decision).values()) == 16
    assert entry_of(decision.plan.pools, NOISE, 0.5)


@pytest.mark.parametrize("name", SERVING_POLICIES)
def test_policy_without_workers_assigns_nothing(name: str) -> None:
    policy = SERVING_POLICIES[name](SETTINGS)

    last, _ = repeat(policy.allocator, context(0, ModelDemand("turbo", 3.0)), 3, 5.0)

    assert last.plan.assignments == ()


def entered_pool(draw: float) -> str:
    entry = entry_of(HALVES, NOISE, draw)
    assert entry is not None
    return entry.pool.pool


def test_entry_of_draws_follow_shares() -> None:
    entered = [entered_pool(draw / 100) for draw in range(100)]

    assert entered.count("light") == 75


def test_entry_of_largest_draw_finds_a_pool() -> None:
    assert entered_pool(1.0) == "heavy"


def test_entry_of_unserved_start_is_none() -> None:
    assert entry_of(HALVES, "latent", 0.5) is None


def test_start_lanes_spare_pools_take_hits_only() -> None:
    entered = StartCandidate(HALVES[0].pool, HALVES[0].model)

    assert start_lanes(HALVES, NOISE, entered) == ()
    assert start_lanes(HALVES, "image", entered) == (HALVES[1],)


def test_check_slo_below_a_second_is_valid() -> None:
    SERVING_POLICIES["diffserve"].check(replace(SETTINGS, slo_s=0.5))


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_entry_of_single_pool_takes_every_draw(draw: float) -> None:
    assert entry_of((ALONE,), "noise", draw) == EnteredPool(ALONE)


SHARED = ServingSettings(heavy="sd15", light="turbo", small=("turbo",), slo_s=5.0, peak_per_s=8.0)


CASCADE = CascadeVariant(("turbo", "sd15"), (Handover("turbo>sd15", "sha256:d", (0.0, 1.0), (0.0, 1.0)),))


POLICIES = ("diffserve", "modm", "cascade")


def allocator_of(policy: str) -> Policy:
    named = SERVING_POLICIES.get(policy)
    return named(SHARED).allocator if named is not None else registered_cascade(SHARED, CASCADE).allocator


def fleet(stranger_count: int) -> PlanInput:
    own = tuple(worker(number) for number in range(8))
    strangers = tuple(worker(20 + number, "other", ("other",)) for number in range(stranger_count))
    return PlanInput(0.0, own + strangers, (ModelDemand("turbo", 8.0),), profiles(turbo=TURBO, sd15=SD15))


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_ignores_workers_of_other_suites(policy: str) -> None:
    allocator = allocator_of(policy)

    alone, beside = decide(allocator, fleet(0)), decide(allocator, fleet(8))

    assert (counts(beside), beside.plan.pools, beside.plan.cascades) == (
        counts(alone),
        alone.plan.pools,
        alone.plan.cascades,
    )
    assert beside.memory == alone.memory
