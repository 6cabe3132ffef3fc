"""Cascades of two models and more: against trying everything, and as plans."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.fleet import StagePlan, StartThreshold
from pentimento.domain.models import CascadeVariant, Handover
from pentimento.policies.allocation import AllocationContext, AllocationDecision, ModelDemand
from pentimento.policies.serving.cascade_problem import CascadeProblem, grid, solve
from pentimento.policies.serving.chain_problem import ChainProblem, ChainSolution, ChainStage, solve_chain
from pentimento.policies.serving.chains import ChainAllocator
from pentimento.policies.serving.costs import BatchCost
from pentimento.policies.serving.settings import DeferralCurve, ServingSettings
from tests.unit.policies.serving.fleets import SD15, TURBO, counts, decide, profiles, repeat, worker

MIDDLE = {size: 4 * seconds for size, seconds in TURBO.items()}
CURVE = DeferralCurve((0.0, 0.5, 1.0), (0.0, 0.3, 1.0))
LIGHT, MEDIUM, HEAVY = (
    ChainStage(tuple(BatchCost(size, table[size]) for size in (1, 2, 4))) for table in (TURBO, MIDDLE, SD15)
)


def checked(problem: ChainProblem) -> ChainSolution:
    """The solution, with every constraint looked at."""
    solution = solve_chain(problem)
    assert sum(solution.counts) <= problem.device_count
    if solution.feasible:
        chosen = [
            next(cost for cost in stage.costs if cost.batch_size == size)
            for stage, size in zip(problem.stages, solution.batch_sizes, strict=True)
        ]
        for count, cost, share in zip(solution.counts, chosen, solution.reached, strict=True):
            assert count * cost.throughput >= problem.demand * share * (1 - 1e-6)
        waits = sum(stage.wait_s for stage in problem.stages)
        passed = problem.discriminator_s * (len(chosen) - 1)
        assert sum(cost.latency_s for cost in chosen) + waits + passed <= problem.slo_s
    return solution


@settings(deadline=None, max_examples=30)
@given(demand=st.floats(0.1, 40.0), devices=st.integers(1, 16), slo_s=st.floats(1.0, 12.0))
def test_with_two_models_it_is_diffserves_problem(demand: float, devices: int, slo_s: float) -> None:
    nothing = lambda cost: 0.0  # noqa: E731
    paper = solve(CascadeProblem(demand, devices, slo_s, LIGHT.costs, HEAVY.costs, CURVE, grid(201), nothing, nothing))

    chain = checked(ChainProblem(demand, devices, slo_s, (LIGHT, HEAVY), (CURVE,)))

    if paper.feasible and paper.heavy_count:
        assert chain.thresholds == pytest.approx((paper.threshold,))
    elif not paper.feasible:
        assert chain.gain == 0.0


@settings(deadline=None, max_examples=15)
@given(demand=st.floats(0.2, 30.0), devices=st.integers(2, 16), slo_s=st.floats(2.0, 12.0))
def test_with_three_models_nothing_on_the_grid_is_better(demand: float, devices: int, slo_s: float) -> None:
    problem = ChainProblem(demand, devices, slo_s, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE), 0.01)

    found = checked(problem)

    best = 0.0
    tried = [index / 19 for index in range(20)]
    for costs in itertools.product(LIGHT.costs, MEDIUM.costs, HEAVY.costs):
        if sum(cost.latency_s for cost in costs) + 0.02 > slo_s:
            continue
        for first, second in itertools.product(tried, tried):
            reached = (1.0, CURVE.share(first), CURVE.share(first) * CURVE.share(second))
            needed = (
                math.ceil(demand * share / cost.throughput - 1e-9) for share, cost in zip(reached, costs, strict=True)
            )
            if sum(needed) <= devices:
                best = max(best, reached[1] + reached[2])
    assert found.gain >= best - 0.03


def test_four_models_are_solved_too_and_more_devices_reach_further() -> None:
    curves = (CURVE,) * 3
    gains = [
        checked(ChainProblem(4.0, devices, 15.0, (LIGHT, MEDIUM, MEDIUM, HEAVY), curves)).gain
        for devices in (1, 4, 8, 16)
    ]

    assert gains == sorted(gains) and gains[0] < gains[-1] <= 3.0


def test_demand_that_nothing_carries_is_admitted_in_part() -> None:
    found = checked(ChainProblem(1000.0, 2, 5.0, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE)))

    assert (found.feasible, found.counts, found.thresholds) == (False, (2, 0, 0), (0.0, 0.0))
    assert found.admission_rate == pytest.approx(2 * (4 / 0.22) / 1000)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_curve_by_which_some_always_go_on_is_planned_as_far_as_devices_carry_them(devices: int) -> None:
    """A discriminator that was measured from a threshold of 0.2 on: a tenth is sent on at the lowest one."""
    some = DeferralCurve((0.2, 0.5, 1.0), (0.1, 0.3, 1.0))

    found = checked(ChainProblem(1.0, devices, 15.0, (LIGHT, MEDIUM, HEAVY), (some, some)))

    assert found.reached[0] == 1.0 and found.admission_rate == 1.0
    assert [count > 0 for count in found.counts] == [True, devices > 1, devices > 2]


def test_a_last_stage_that_cannot_carry_the_fewest_that_go_on_has_no_devices() -> None:
    """A tenth of a thousand a second; the device that is left carries one in two seconds."""
    some = DeferralCurve((0.0, 1.0), (0.1, 1.0))
    light = ChainStage((BatchCost(1, 0.001),))

    found = checked(ChainProblem(1000.0, 2, 15.0, (light, ChainStage((BatchCost(1, 2.0),))), (some,)))

    assert (found.counts, found.reached, found.thresholds) == ((2, 0), (1.0, 0.0), (0.0,))


THREE = CascadeVariant(
    ("turbo", "middle", "sd15"),
    tuple(
        Handover(name, "sha256:" + "d" * 64, CURVE.thresholds, CURVE.shares) for name in ("turbo>middle", "middle>sd15")
    ),
)
NOTHING = AllocationDecision()
SETTINGS = ServingSettings("sd15", light="turbo", slo_s=8.0, batch_sizes=(1, 2, 4))


def fleet(devices: int, rate: float, last: AllocationDecision = NOTHING) -> AllocationContext:
    models = ("turbo", "middle", "sd15")
    workers = tuple(worker(index, "sd15", models) for index in range(devices))
    demand = (ModelDemand("turbo", rate),)
    return AllocationContext(0.0, workers, demand, profiles(turbo=TURBO, middle=MIDDLE, sd15=SD15), last)


def test_a_plan_has_the_three_stages_with_their_thresholds_and_discriminators() -> None:
    decision = decide(ChainAllocator(SETTINGS, THREE), fleet(12, 6.0))

    (cascade,) = decision.cascades
    assert cascade.cascade == "turbo>middle>sd15"
    assert [(stage.pool, stage.discriminator, stage.discriminator_digest) for stage in cascade.stages] == [
        ("turbo", "turbo>middle", "sha256:" + "d" * 64),
        ("middle", "middle>sd15", "sha256:" + "d" * 64),
        ("sd15", "", ""),
    ]
    assert {entry.start for entry in cascade.stages[0].thresholds} == {"noise", "latent", "image"}
    assert set(counts(decision)) == {"turbo", "middle", "sd15"}
    assert {route.cascade for route in decision.pools[0].routes} == {"turbo>middle>sd15"}


def test_a_plan_says_which_stage_starts_from_the_picture_before_it() -> None:
    first, second = THREE.handovers
    reusing = CascadeVariant(THREE.models, (first, replace(second, reuse_share=0.4)))

    (cascade,) = decide(ChainAllocator(SETTINGS, reusing), fleet(12, 6.0)).cascades

    assert [stage.reuse_share for stage in cascade.stages] == [0.0, 0.4, 0.0]
    full, spared = (ChainAllocator(SETTINGS, one)._stage(fleet(12, 6.0), 2).costs for one in (THREE, reusing))
    assert [cost.latency_s for cost in spared] == pytest.approx([0.6 * cost.latency_s for cost in full])


def test_under_load_fewer_go_on_and_with_nobody_to_go_on_to_nothing_is_scored() -> None:
    allocator = ChainAllocator(SETTINGS, THREE)

    alone = decide(allocator, fleet(1, 6.0))

    assert alone.cascades == ()
    assert counts(alone) == {"turbo": 1}
    assert all(not route.cascade for route in alone.pools[0].routes)


def test_demand_is_averaged_from_look_to_look() -> None:
    allocator = ChainAllocator(SETTINGS, THREE)
    first = decide(allocator, fleet(12, 6.0))

    again = decide(allocator, fleet(12, 30.0, first))

    assert (first.memory, again.memory) == ((6.0, 0.0, 1.0, 1.0), (6.0, 0.0, 1.0, 1.0))


@pytest.mark.parametrize("bent", [0, 1])
def test_each_curve_follows_the_share_that_is_observed_to_go_on_there(bent: int) -> None:
    """By a fifth, at most, of what the share of the last plan's thresholds asks for: 0.49 goes on where 0.7 was
    registered, which is twice the exponent."""
    first = decide(ChainAllocator(SETTINGS, THREE), fleet(12, 6.0))
    (planned,) = first.cascades
    scored = tuple(replace(stage, thresholds=(StartThreshold("noise", 0.785714),)) for stage in planned.stages[:-1])
    last = replace(first, cascades=(replace(planned, stages=(*scored, planned.stages[-1])),))
    model = THREE.models[bent]
    demand = tuple(ModelDemand(name, 6.0, deferred_share=0.49 if name == model else 0.7) for name in THREE.models[:-1])

    found = decide(ChainAllocator(SETTINGS, THREE), replace(fleet(12, 6.0, last), demand=demand))

    bends = found.memory[2:]
    assert bends[bent] == pytest.approx(1.0 + 0.2 * CURVE.tells(0.785714), abs=1e-3)
    assert bends[1 - bent] == pytest.approx(1.0, abs=1e-3)


def test_where_more_go_on_than_was_registered_the_threshold_falls() -> None:
    allocator = ChainAllocator(SETTINGS, THREE)
    calm = decide(allocator, fleet(12, 20.0)).threshold("middle")
    seen = ModelDemand("middle", 20.0, deferred_share=1.6 * CURVE.share(calm))
    asked = fleet(12, 20.0)

    last, _ = repeat(allocator, replace(asked, demand=(*asked.demand, seen)), times=30, every_s=5.0)

    assert last.threshold("middle") < 0.8 * calm


def test_every_hand_over_takes_what_the_slowest_discriminator_measured() -> None:
    """Two scorings of four seconds leave nothing of eight."""
    asked = fleet(12, 6.0)
    slow = replace(asked, profiles=(*asked.profiles, *profiles(**{"turbo>middle": {1: 0.01}, "middle>sd15": {1: 4.0}})))

    assert decide(ChainAllocator(SETTINGS, THREE), asked).threshold("turbo") > 0.0
    assert decide(ChainAllocator(SETTINGS, THREE), slow).threshold("turbo") == 0.0


def test_a_stage_that_is_the_last_scores_nothing() -> None:
    decision = decide(ChainAllocator(SETTINGS, THREE), fleet(12, 6.0))

    assert decision.cascades[0].stages[-1] == StagePlan("sd15")


def test_while_nobody_asks_every_stage_is_there() -> None:
    found = solve_chain(ChainProblem(0.0, 6, 9.0, (LIGHT, MEDIUM, HEAVY), (CURVE, CURVE)))

    assert min(found.counts) >= 1 and found.gain == 2.0


def test_what_a_stage_waits_for_counts_against_the_slo_of_the_light_one_alone() -> None:
    """In two seconds nobody reaches the second model; the first one waits a second, and its batch of two takes one."""
    waits = ChainStage((BatchCost(1, 0.5), BatchCost(2, 0.8), BatchCost(4, 1.25)), wait_s=1.0)
    never = ChainStage((BatchCost(1, 9.0),))

    solution = solve_chain(ChainProblem(100.0, 4, 2.0, (waits, never), (CURVE,)))

    assert (solution.feasible, solution.batch_sizes, solution.counts) == (False, (2, 1), (4, 0))
    assert solution.admission_rate == pytest.approx(4 * 2.5 / 100.0)
    late = solve_chain(ChainProblem(100.0, 4, 1.1, (waits, never), (CURVE,)))
    assert (late.feasible, late.batch_sizes, late.counts) == (False, (1, 1), (4, 0))
    assert late.admission_rate == pytest.approx(4 * 2.0 / 100.0)


def test_the_first_stage_starts_from_no_picture() -> None:
    first, second = THREE.handovers
    reusing = CascadeVariant(THREE.models, (first, replace(second, reuse_share=0.4)))

    full, same = (ChainAllocator(SETTINGS, one)._stage(fleet(12, 6.0), 0).costs for one in (THREE, reusing))

    assert same == full


@pytest.mark.parametrize(("slo_s", "feasible"), [(5.3, True), (5.2, False)])
def test_a_chain_is_in_time_with_what_its_stages_wait_for_and_the_score(slo_s: float, feasible: bool) -> None:
    """Half a second and two, waits of one and one and a half, a quarter for the score."""
    first, second = ChainStage((BatchCost(1, 0.5),), wait_s=1.0), ChainStage((BatchCost(1, 2.0),), wait_s=1.5)

    solution = solve_chain(ChainProblem(0.1, 4, slo_s, (first, second), (CURVE,), 0.25))

    assert (solution.counts[1] > 0) is feasible


@pytest.mark.parametrize(
    ("demand", "slo_s", "wait_s"),
    [
        (ModelDemand("turbo", 2.0, 9, mean_queue_length=4.0), 8.0, 2.0),
        (ModelDemand("turbo", 2.0, 9), 8.0, 4.5),
        (ModelDemand("turbo", 0.0, 3), 8.0, 24.0),
        (ModelDemand("turbo", 0.0, 3), math.inf, 3000.0),
    ],
)
def test_a_stage_is_waited_for_by_little_s_law(demand: ModelDemand, slo_s: float, wait_s: float) -> None:
    allocator = ChainAllocator(replace(SETTINGS, slo_s=slo_s), THREE)

    assert allocator._stage(replace(fleet(12, 6.0), demand=(demand,)), 0).wait_s == pytest.approx(wait_s)


def lacking(*lacked: str) -> AllocationContext:
    """Twelve workers, of which none can hold these models, nor says what they cost."""
    there = tuple(model for model in THREE.models if model not in lacked)
    views = tuple(worker(index, there[0], there) for index in range(12))
    tables = {"turbo": TURBO, "middle": MIDDLE, "sd15": SD15}
    known = profiles(**{model: tables[model] for model in there})
    return AllocationContext(0.0, views, (ModelDemand(there[0], 6.0),), known)


@pytest.mark.parametrize(
    ("lacked", "stages"),
    [(("sd15",), ["turbo", "middle"]), (("turbo",), ["middle", "sd15"]), (("middle",), []), (("turbo", "sd15"), [])],
)
def test_without_workers_for_a_stage_those_beside_one_another_are_planned(lacked: tuple[str, ...], stages) -> None:
    decision = decide(ChainAllocator(SETTINGS, THREE), lacking(*lacked))

    first = next(model for model in THREE.models if model not in lacked)
    assert [[stage.pool for stage in one.stages] for one in decision.cascades] == ([stages] if stages else [])
    assert [pool.pool for pool in decision.pools if pool.routes] == [first]
    assert set(counts(decision)) == set(stages or [first]) and sum(counts(decision).values()) == 12
    assert {pool.pool for pool in decision.pools} == set(THREE.models)


def test_what_was_learnt_of_a_stage_is_kept_while_it_has_no_workers() -> None:
    before = AllocationDecision(memory=(6.0, 0.0, 1.5, 0.7))

    decision = decide(ChainAllocator(SETTINGS, THREE), replace(lacking("sd15"), now_s=5.0, last=before))

    assert decision.memory[1:] == (5.0, 1.5, 0.7)
