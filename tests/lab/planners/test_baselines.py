"""Clipper's batches and Proteus's shares of two models."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.planners.clipper import ClipperMemory, ClipperModel
from lab.planners.proteus import Proteus, ProteusMemory
from pentimento.policies.plan.entry import NOISE
from pentimento.policies.plan.inputs import AllocationProfile, Decision, ModelDemand
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, repeat

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
