"""Plan by Proteus and Clipper on a few devices, by hand."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.planners.baselines import ClipperMemory, ClipperModel, Proteus, ProteusMemory
from pentimento.policies.plan.entry import NOISE
from pentimento.policies.plan.inputs import AllocationProfile, Decision, ModelDemand, PlanInput
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, profiles, repeat, worker

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)


@pytest.mark.parametrize(("violations", "before", "after"), [(0, 2, 3), (0, 4, 4), (1, 4, 2), (5, 3, 1), (1, 1, 1)])
def test_clipper_adds_one_and_halves(violations: int, before: int, after: int) -> None:
    asked_for = context(1, ModelDemand("sd15", 1.0, violation_count=violations))
    last = Decision(memory=ClipperMemory(before))

    decision = decide(ClipperModel("sd15", 5.0, (1, 2, 4, 8)), replace(asked_for, last=last))

    assert (decision.plan.assignments[0].max_batch_size, decision.memory) == (after, ClipperMemory(after))


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


def test_proteus_averages_demand_of_both_models() -> None:
    both = context(16, ModelDemand("turbo", 6.0), ModelDemand("sd15", 4.0))
    first = decide(Proteus(SETTINGS), replace(both, now_s=7.0))
    burst = replace(context(16, ModelDemand("turbo", 41.0), now_s=8.0), last=first)

    assert first.memory == ProteusMemory(10.0, 7.0)
    assert decide(Proteus(SETTINGS), burst).memory == ProteusMemory(pytest.approx(10.0 + 31.0 / 3.1), 8.0)


def test_proteus_always_late_runs_quickest_light_batch() -> None:
    decision = decide(Proteus(replace(SETTINGS, slo_s=0.01)), context(2, ModelDemand("turbo", 1.0)))

    assert {(each.model, each.max_batch_size) for each in decision.plan.assignments} == {("turbo", 1)}


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


def test_proteus_always_late_sends_all_to_light() -> None:
    decision = decide(Proteus(replace(SETTINGS, slo_s=0.01)), context(2, ModelDemand("turbo", 1.0)))

    assert [[route.share for route in pool.routes] for pool in decision.plan.pools] == [[1.0] * 3, [0.0] * 3]
    assert [pool.worker_ids for pool in decision.plan.pools] == [("w000", "w001"), ()]


def test_proteus_batch_of_exactly_slo_is_in_time() -> None:
    """Two seconds of waiting and two of running."""
    quick = AllocationProfile("turbo", "", 1, 0.1, 0), AllocationProfile("sd15", "", 1, 2.0, 0)
    asked_for = replace(context(4, ModelDemand("turbo", 1.0)), profiles=quick)

    decision = decide(Proteus(replace(SETTINGS, slo_s=4.0)), asked_for)

    assert "sd15" in counts(decision)


def test_clipper_begins_with_a_batch_of_one() -> None:
    first = decide(ClipperModel("sd15", 5.0, (1, 2, 4)), context(1, ModelDemand("sd15", 1.0)))

    assert first.plan.assignments[0].max_batch_size == 1


@pytest.mark.parametrize("rate", [2.0, 10.0, 25.0])
def test_proteus_carries_demand(rate: float) -> None:
    decision = decide(Proteus(SETTINGS), context(16, ModelDemand("turbo", rate)))

    share = next(route.share for route in decision.plan.pools[1].routes if route.route == NOISE)
    heavy = [assignment for assignment in decision.plan.assignments if assignment.model == "sd15"]
    throughput = {1: 1 / 1.78, 2: 2 / 2.16, 4: 4 / 3.68}[heavy[0].max_batch_size] * len(heavy)
    assert 0 < share <= 1
    assert throughput >= share * rate * 0.999


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
        (ClipperMemory(7), 0, 8),
        (ClipperMemory(8), 0, 8),
        (ClipperMemory(8), 1, 4),
        (ClipperMemory(5), 3, 2),
        (ClipperMemory(1), 1, 1),
        (None, 1, 1),
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
        (4.5, 1.0, {"sd15": 3}),
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
