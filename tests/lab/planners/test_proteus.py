"""Proteus and Clipper on three devices, worked out by hand."""

from dataclasses import replace

import pytest

from lab.planners.clipper import ClipperMemory, ClipperModel
from lab.planners.proteus import Proteus, ProteusMemory
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.settings import ServingSettings
from tests.unit.policies.plan.fleets import counts, decide, profiles, worker

# One, one and a half and two a second.
TABLE = {1: 1.0, 3: 2.0, 8: 4.0}
SETTINGS = ServingSettings("sd15", "turbo", slo_s=6.0, overprovision=1.0, batch_sizes=(1, 3), expected_per_s=0.0)


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
    decision = decide(Proteus(SETTINGS), asked(ModelDemand("turbo", rate / 2), ModelDemand("sd15", rate / 2)))

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
        policy = Proteus(replace(SETTINGS, slo_s=slo_s))
        assert shares(decide(policy, asked(ModelDemand("turbo", rate))))["sd15"] == 1.0
        assert shares(decide(policy, asked(ModelDemand("turbo", rate + 0.1))))["sd15"] < 1.0


def test_proteus_nothing_in_time_uses_quickest_light_batches() -> None:
    decision = decide(Proteus(replace(SETTINGS, slo_s=0.1)), asked(ModelDemand("turbo", 1.0)))

    assert (shares(decision), counts(decision), sizes(decision)) == ({"turbo": 1.0, "sd15": 0.0}, {"turbo": 3}, {1})


def test_proteus_plans_for_averaged_demand() -> None:
    settings = replace(SETTINGS, demand_weight=0.5, overprovision=1.2)

    first = decide(Proteus(replace(settings, expected_per_s=2.0)), asked(ModelDemand("turbo", 8.0)))
    later = decide(Proteus(settings), asked(ModelDemand("turbo", 8.0), memory=ProteusMemory(2.0, 5.0), now_s=7.0))

    assert first.memory == ProteusMemory(2.0, 0.0)
    assert later.memory == ProteusMemory(pytest.approx(2.0 + 0.75 * 6.0), 7.0)
    assert shares(later)["sd15"] == pytest.approx(1.5 / (6.5 * 1.2), abs=1e-6)
