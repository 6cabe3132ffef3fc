"""Plan by Proteus and Clipper on a few devices, by hand."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.planners.baselines import ClipperMemory, ClipperModel, Proteus, ProteusMemory
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, profiles, repeat, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)


@settings(deadline=None, max_examples=40)
@given(rate=st.floats(0.5, 60.0), devices=st.integers(1, 12))
def test_proteus_finds_largest_share_in_time(rate: float, devices: int) -> None:
    decision = decide(Proteus(replace(SETTINGS, overprovision=1.0)), context(devices, ModelDemand("turbo", rate)))

    best = 0.0
    lights = [size / seconds for size, seconds in TURBO.items() if 2 * seconds <= 5.0]
    heavies = [size / seconds for size, seconds in SD15.items() if 2 * seconds <= 5.0]
    for light, heavy, count in itertools.product(lights, heavies, range(1, devices + 1)):
        share = min(count * heavy / rate, 1.0)
        if (devices - count) * light >= (1.0 - share) * rate * (1 - 1e-9):
            best = max(best, share)
    light_routes, heavy_routes = (pool.routes for pool in decision.plan.pools)
    assert [route.route for route in heavy_routes] == ["noise", "latent", "image"]
    assert [route.share for route in heavy_routes] == pytest.approx([best] * 3)
    assert [route.share for route in light_routes] == pytest.approx([1.0 - best] * 3)


def test_proteus_takes_the_smallest_batches_among_equal_shares() -> None:
    """Two heavy devices of 2 / 2.16 carry 46 % of 4 a second; any batch of the light model carries the rest on one.
    One a second is carried by the heavy model alone, in batches of one."""
    settings = replace(SETTINGS, overprovision=1.0)

    shared = decide(Proteus(settings), context(3, ModelDemand("turbo", 4.0)))
    alone = decide(Proteus(settings), context(16, ModelDemand("turbo", 1.0)))

    assert [(each.model, each.max_batch_size) for each in shared.plan.assignments] == [
        ("sd15", 2),
        ("sd15", 2),
        ("turbo", 1),
    ]
    assert [(each.model, each.max_batch_size) for each in alone.plan.assignments] == [("sd15", 1)] * 16
    assert [pool.worker_ids for pool in shared.plan.pools] == [("w002",), ("w000", "w001")]


def test_clipper_grows_batch_within_slo() -> None:
    allocator = ClipperModel("sd15", 5.0, (1, 2, 4, 8))

    last, _ = repeat(allocator, context(2, ModelDemand("sd15", 1.0)), times=10, every_s=5.0)

    assert last.plan.assignments[0].max_batch_size == 4


# One, one and a half and two a second.
TABLE = {1: 1.0, 3: 2.0, 8: 4.0}
BY_HAND = ServingSettings("sd15", "turbo", slo_s=6.0, overprovision=1.0, batch_sizes=(1, 3), expected_per_s=0.0)


def asked(*demand: ModelDemand, devices: int = 3, memory: object = None, now_s: float = 0.0) -> PlanInput:
    views = tuple(worker(index, "sd15") for index in range(devices))
    table = profiles(sd15=TABLE, turbo={1: 0.25, 2: 0.4})
    return PlanInput(now_s, views, demand, table, Decision(memory=memory))


def sizes(decision: Decision) -> set[int]:
    return {one.max_batch_size for one in decision.plan.assignments}


@pytest.mark.parametrize(
    ("memory", "violations", "size"),
    [
        (None, 0, 1),
        (ClipperMemory(1), 0, 2),
        (ClipperMemory(8), 0, 8),
        (ClipperMemory(8), 1, 4),
        (ClipperMemory(5), 3, 2),
        (ClipperMemory(1), 1, 1),
    ],
)
def test_clipper_adds_one_or_halves_after_violations(memory: ClipperMemory | None, violations: int, size: int) -> None:
    demand = ModelDemand("sd15", 1.0, violation_count=violations)

    assert sizes(decide(ClipperModel("sd15", 4.0, (1, 3, 8)), asked(demand, memory=memory))) == {size}


def shares(decision: Decision) -> dict[str, float]:
    return {pool.pool: round(pool.routes[0].share, 6) for pool in decision.plan.pools}


@pytest.mark.parametrize(
    ("rate", "heavy_share", "devices"),
    [
        # Three heavy devices in batches of three carry four and a half; turbo carries four a second.
        (0.0, 1.0, {"sd15": 3}),
        (5.0, 0.6, {"sd15": 2, "turbo": 1}),
        (7.0, 3.0 / 7.0, {"sd15": 2, "turbo": 1}),
        (9.0, 1.5 / 9.0, {"sd15": 1, "turbo": 2}),
        (100.0, 0.0, {"turbo": 3}),
    ],
)
def test_proteus_heavy_share_by_hand(rate: float, heavy_share: float, devices: dict[str, int]) -> None:
    decision = decide(Proteus(BY_HAND), asked(ModelDemand("turbo", rate / 2), ModelDemand("sd15", rate / 2)))

    assert shares(decision) == pytest.approx({"turbo": 1 - heavy_share, "sd15": heavy_share}, abs=1e-6)
    assert counts(decision) == devices
    assert {(route.route, route.cascade) for pool in decision.plan.pools for route in pool.routes} == {
        ("noise", ""),
        ("latent", ""),
        ("image", ""),
    }


def test_proteus_waits_for_a_batch_before_its_own() -> None:
    """In four seconds a batch of three is just in time; in less one of one is."""
    for slo_s, rate in ((4.0, 4.5), (3.9, 3.0)):
        policy = Proteus(replace(BY_HAND, slo_s=slo_s))
        assert shares(decide(policy, asked(ModelDemand("turbo", rate))))["sd15"] == 1.0
        assert shares(decide(policy, asked(ModelDemand("turbo", rate + 0.1))))["sd15"] < 1.0


def test_proteus_nothing_in_time_uses_quickest_light_batches() -> None:
    decision = decide(Proteus(replace(BY_HAND, slo_s=0.1)), asked(ModelDemand("turbo", 1.0)))

    assert (shares(decision), counts(decision), sizes(decision)) == ({"turbo": 1.0, "sd15": 0.0}, {"turbo": 3}, {1})


def test_proteus_plans_for_averaged_demand() -> None:
    settings = replace(BY_HAND, demand_weight=0.5, overprovision=1.2)

    first = decide(Proteus(replace(settings, expected_per_s=2.0)), asked(ModelDemand("turbo", 8.0)))
    later = decide(Proteus(settings), asked(ModelDemand("turbo", 8.0), memory=ProteusMemory(2.0, 5.0), now_s=7.0))

    assert first.memory == ProteusMemory(2.0, 0.0)
    assert later.memory == ProteusMemory(pytest.approx(2.0 + 0.75 * 6.0), 7.0)
    assert shares(later)["sd15"] == pytest.approx(1.5 / (6.5 * 1.2), abs=1e-6)
