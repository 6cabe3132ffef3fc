"""Whole decisions of the policies, worked out by hand, and the parts they are made of."""

from dataclasses import replace

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import (
    CascadePlan,
    Plan,
    PoolPlan,
    Replica,
    ReplicaKind,
    RouteShare,
    StagePlan,
    StartThreshold,
    WorkerAssignment,
)
from pentimento.domain.models import Handover
from pentimento.policies.plan.cascade import CascadeMemory
from pentimento.policies.plan.cascade_problem import CascadeSolution
from pentimento.policies.plan.costs import BatchCost, batch_costs
from pentimento.policies.plan.inputs import (
    UNNUMBERED,
    AllocationProfile,
    Decision,
    ModelDemand,
    PlanInput,
    ReplicaView,
)
from pentimento.policies.plan.mixture import (
    HITS,
    SPARING,
    MixtureLoad,
    MixtureMemory,
    MixtureMode,
    MixturePolicy,
    PidMemory,
    ResidentMixture,
    large_count,
)
from pentimento.policies.plan.placement import place
from pentimento.policies.plan.registry import SERVING_POLICIES
from pentimento.policies.plan.settings import ServingSettings
from pentimento.policies.serving.demand import averaged_demand, settled_weight, share_weight, smoothed, threshold_of
from pentimento.policies.serving.entry import (
    EVERY_START,
    EnteredPool,
    entry_of,
    every_start,
    scaled_start_step,
)
from tests.unit.policies.plan.fleets import TURBO, context, counts, decide, diffserve, profiles, worker
from tests.unit.policies.plan.test_mixture import asked

SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, peak_per_s=20.0)
LIGHT = PoolPlan("light", "turbo", ("w0",), routes=(RouteShare("noise", 1.0),))
HEAVY = PoolPlan("heavy", "sd15", ("w1",), routes=(RouteShare("image", 1.0), RouteShare("spare", 1.0)))


def names(count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"w{index:03d}" for index in range(first, first + count))


def test_a_cascade_s_solution_becomes_a_plan() -> None:
    held = CascadeSolution((1, 2), (8, 4), (1.0, 0.6), (0.6,), admission_rate=0.5)

    plan = diffserve(SETTINGS).plan(context(3), held)

    # All hold the heavy model: the first two keep it.
    assert plan.assignments == (
        WorkerAssignment("w000", "sim:0", "sd15", 1, 4),
        WorkerAssignment("w001", "sim:1", "sd15", 1, 4),
        WorkerAssignment("w002", "sim:2", "turbo", 1, 8),
    )
    assert plan.pools == (
        PoolPlan("turbo", "turbo", ("w002",), every_start("turbo>sd15")),
        PoolPlan("sd15", "sd15", ("w000", "w001")),
    )
    thresholds = tuple(StartThreshold(start, 0.6) for start in ("noise", "latent", "image"))
    stages = (StagePlan("turbo", thresholds), StagePlan("sd15"))
    assert plan.cascades == (CascadePlan("turbo>sd15", stages),)
    assert plan.admission_rate == 0.5


def test_without_a_heavy_worker_nothing_is_sent_on() -> None:
    held = CascadeSolution((3, 0), (8, 4), (1.0, 0.6), (0.6,))

    assert threshold_of(diffserve(SETTINGS).plan(context(3), held), "turbo") == 0.0


def test_modm_gives_the_large_model_what_the_hits_leave() -> None:
    """0.3 a second, 75 % hits of half the steps: misses 0.075, hits 0.1125 full runs. 15 large devices of 0.9 / 91.5
    and one small one of 0.9 / 16.5 carry them, 16 large ones do not."""
    decision = decide(MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,))), asked(18))

    assert counts(decision) == {"sd35": 15, "sdxl": 1}
    assert decision.plan.pools == (
        PoolPlan("sd35", "sd35", names(15), routes=SPARING),
        PoolPlan("sdxl", "sdxl", names(1, 15), routes=HITS),
    )
    assert {assignment.max_batch_size for assignment in decision.plan.assignments} == {1}


def test_modm_without_hits_needs_no_small_model() -> None:
    decision = decide(
        MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl",), batch_sizes=(1,))), asked(1, hit_share=0.0)
    )

    assert decision.plan.pools == (
        PoolPlan("sd35", "sd35", names(16), routes=EVERY_START),
        PoolPlan("sdxl", "sdxl", ()),
    )


def test_a_small_model_on_its_way_out_serves_what_waits_for_it() -> None:
    waiting = replace(asked(18), demand=(*asked(18).demand, ModelDemand("sana", 0.0, queue_length=2)))
    fleet = (*waiting.replicas[:-1], worker(15, "sana", ("sd35", "sdxl", "sana")))

    decision = decide(
        MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,))),
        replace(waiting, replicas=fleet),
    )

    assert decision.plan.pools[2] == PoolPlan("sana", "sana", ("w015",))


def routes_of(decision: Decision) -> dict[str, set[str]]:
    return {pool.model: {route.route for route in pool.routes} for pool in decision.plan.pools}


def test_devices_that_hold_both_models_keep_them_and_images_go_to_the_small_one() -> None:
    allocator = ResidentMixture(ServingSettings(heavy="sd35", small=("absent", "sana")))
    models = ("sd35", "sana", "sd35", "other")
    fleet = tuple(worker(number, model, models) for number, model in enumerate(models))

    decision = decide(allocator, replace(asked(18), replicas=fleet))

    assert [(assignment.model, assignment.max_batch_size) for assignment in decision.plan.assignments] == [
        (model, 0) for model in models
    ]
    assert routes_of(decision) == {"sd35": {"noise", "latent"}, "sana": {"image"}, "other": set()}


def test_where_no_worker_holds_the_small_model_the_heavy_one_takes_images_too() -> None:
    allocator = ResidentMixture(ServingSettings(heavy="sd35", small=("sana",)))

    decision = decide(allocator, replace(asked(18), replicas=(worker(0, "sd35", ("sd35", "sana")),)))

    assert routes_of(decision) == {"sd35": {"noise", "latent", "image"}}


def test_the_load_of_a_mixture_is_in_full_runs() -> None:
    assert MixtureLoad.of(2.0, [(0.0, 0.2), (0.2, 0.5), (0.8, 0.25)]) == MixtureLoad(
        0.5, pytest.approx(2 * (0.4 + 0.05))
    )


@pytest.mark.parametrize(
    ("load", "count"),
    [(MixtureLoad(0.0, 0.0), 4), (MixtureLoad(1.0, 0.0), 4), (MixtureLoad(0.5, 7.0), 1), (MixtureLoad(9.0, 1.0), 4)],
)
def test_the_large_model_gets_as_many_of_four_as_the_load_allows(load: MixtureLoad, count: int) -> None:
    """A large device runs 1 a second, a small one 2.5."""
    assert large_count(MixtureMode.QUALITY, load, 4, 1.0, 2.5) == count


def test_batches_that_were_not_measured_lie_on_the_line_and_none_beyond() -> None:
    costs = batch_costs(context(1), "sd15", (3, 1, 64))

    assert costs == (BatchCost(1, 1.78), BatchCost(3, pytest.approx((2.16 + 3.68) / 2)))
    assert costs[1].throughput == pytest.approx(3 / 2.92)
    assert [cost.batch_size for cost in batch_costs(context(1), "sd15")] == [1, 2, 4, 8, 16, 32]
    assert batch_costs(context(1), "sd15", (64,)) == (BatchCost(1, 1.78),)


def test_of_the_devices_that_are_there_the_slowest_counts() -> None:
    def on(*devices: str) -> PlanInput:
        replicas = tuple(
            ReplicaView(Replica(f"w{device}", ReplicaKind.UNET_WORKER, "", 1, device=device)) for device in devices
        )
        measured = tuple(AllocationProfile("m", device, 1, s, 0) for device, s in (("a", 1.0), ("b", 3.0), ("c", 9.0)))
        return PlanInput(0.0, replicas, (), measured)

    assert batch_costs(on("a"), "m") == (BatchCost(1, 1.0),)
    assert batch_costs(on("b", "a"), "m") == (BatchCost(1, 3.0),)
    assert batch_costs(on(), "m") == (BatchCost(1, 9.0),)
    with pytest.raises(FailedPrecondition, match="no profile"):
        batch_costs(on("d"), "m")


def test_an_average_begins_with_what_is_seen_first() -> None:
    assert (smoothed(6.0, 0.0, 0.5), smoothed(6.0, 2.0, 0.25)) == (6.0, 3.0)
    assert averaged_demand(6.0, 2.0, 0.5, 2.0) == pytest.approx(2.0 + 0.75 * 4.0)
    assert averaged_demand(6.0, 2.0, 0.5, 0.0) == 2.0


def test_a_start_keeps_its_share_of_the_steps_and_leaves_at_least_one() -> None:
    assert [scaled_start_step(step, 50, 10) for step in (0, 2, 20, 50)] == [0, 0, 4, 9]


def test_who_cannot_hold_a_model_is_left_out_and_the_rest_is_cut_to_the_fleet() -> None:
    able, unable = worker(0, "sd15"), worker(1, "sdxl", ("sdxl",))
    fleet = PlanInput(0.0, (able, unable), (), profiles(turbo=TURBO))

    assert place(fleet, {"turbo": 5, "sd15": 5}, {"turbo": 8}) == (WorkerAssignment("w000", "sim:0", "turbo", 1, 8),)


def test_an_slo_of_less_than_a_second_is_one() -> None:
    SERVING_POLICIES["diffserve"].check(replace(SETTINGS, slo_s=0.5))


def test_a_cascade_carries_its_memory_from_the_first_decision_on() -> None:
    """Demand, bend of the curve, time, and of which curve the bend is."""
    expecting = replace(SETTINGS, expected_per_s=8.0)

    plain = decide(diffserve(expecting), context(16, now_s=7.0))

    assert plain.memory == CascadeMemory(8.0, 7.0, (SETTINGS.deferral,), (1.0,))


def test_modm_s_models_are_planned_with_a_tenth_to_spare() -> None:
    """One small device runs 1 / 16.5 a second: of hits alone, at half the steps, it carries 0.9 of 2 / 16.5."""
    allocator = MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,)))
    # Of 16 devices one is large and spares nothing here: 15 small ones.
    limit_per_s = 0.9 * (15 / 16.5 + 1 / 91.5) * 2

    below = decide(allocator, asked(60 * limit_per_s * 0.99, hit_share=1.0))
    above = decide(allocator, asked(60 * limit_per_s * 1.01, hit_share=1.0))

    assert (set(counts(below)), set(counts(above))) == ({"sd35", "sdxl"}, {"sd35", "sana"})


def test_modm_remembers_its_controller_its_demand_and_its_small_model() -> None:
    allocator = MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,)))

    first = decide(allocator, asked(18, now_s=100.0))
    busy = decide(allocator, replace(asked(40, now_s=100.0, hit_share=0.85)))

    # A quarter misses, three quarters have half of their work left; the small model's number, 15 large devices, since.
    assert first.memory == MixtureMemory(
        PidMemory(15.0, 0.0, 0.0), 100.0, pytest.approx(0.3), 0.25, 0.375, small_index=0, count=15, moved_at_s=100.0
    )
    assert busy.memory == MixtureMemory(
        busy.memory.pid,
        100.0,
        pytest.approx(40 / 60),
        pytest.approx(0.15),
        pytest.approx(0.425),
        small_index=1,
        count=counts(busy)["sd35"],
        moved_at_s=100.0,
    )


def test_modm_s_small_model_stays_for_a_minute() -> None:
    allocator = MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,)))
    busy = decide(allocator, asked(40, hit_share=0.85))

    def later(now_s: float) -> set[str]:
        return set(counts(decide(allocator, replace(asked(1, now_s=now_s), last=busy)))) - {"sd35"}

    assert (later(59.9), later(60.0)) == ({"sana"}, {"sdxl"})


@pytest.mark.parametrize(("observed", "exponent"), [(0.99, 0.2), (0.001, 5.0), (0.25, 2.0)])
def test_the_curve_follows_what_is_observed_by_a_fifth_within_bounds(observed: float, exponent: float) -> None:
    """A fifth of what an observation at t = 0.5 tells, which is 0.742."""
    cascade = CascadePlan("c", (StagePlan("turbo", (StartThreshold("noise", 0.5),)), StagePlan("sd15")))
    last = Decision(Plan(UNNUMBERED, cascades=(cascade,)), CascadeMemory(4.0, 0.0, (SETTINGS.deferral,), (1.0,)))
    seen = replace(context(16, ModelDemand("turbo", 4.0, deferred_share=observed)), last=last)

    bend = decide(diffserve(SETTINGS), seen).memory.bends[0]

    assert bend == pytest.approx(1.0 + 0.2 * 0.742 * (exponent - 1.0), abs=1e-3)


def test_a_curve_that_is_registered_anew_is_planned_with_as_it_is() -> None:
    """What was seen of the other one, whose pictures were nearly all sent on, bends it no more."""
    cascade = CascadePlan("c", (StagePlan("turbo", (StartThreshold("noise", 0.5),)), StagePlan("sd15")))
    demand = ModelDemand("turbo", 4.0, deferred_share=0.99)
    remeasured = SETTINGS.handing_over(Handover("turbo>sd15", "sha256:d", (0.0, 0.5, 1.0), (0.0, 0.9, 1.0)))

    def after(memory: CascadeMemory) -> CascadeMemory:
        last = Decision(Plan(UNNUMBERED, cascades=(cascade,)), memory)
        return decide(diffserve(remeasured), replace(context(16, demand), last=last)).memory

    anew = after(decide(diffserve(SETTINGS), context(16, demand)).memory)

    assert anew.bends == (1.0,)
    assert after(anew).bends != (1.0,)


@pytest.mark.parametrize(("length", "sends_on"), [(0.5, True), (0.7, False)])
def test_a_pool_that_hears_from_nobody_drains_one_request_an_slo(length: float, sends_on: bool) -> None:
    """The models take 0.1 s and 1.78 s of 5 s: a wait of 2.5 s fits, one of 3.5 s does not."""
    waiting = ModelDemand("sd15", 0.0, mean_queue_length=length)

    decision = decide(diffserve(SETTINGS), context(16, ModelDemand("turbo", 4.0), waiting))

    assert (threshold_of(decision.plan, "turbo") > 0.0) is sends_on


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_a_pool_alone_takes_every_draw(draw: float) -> None:
    assert entry_of((LIGHT,), "noise", draw) == EnteredPool(LIGHT)


def test_a_small_demand_is_averaged_like_a_large_one() -> None:
    assert smoothed(1.5, 0.5, 0.25) == 0.75


@pytest.mark.parametrize("queue_length", [1, 3])
def test_a_worker_is_given_to_those_who_wait_and_the_others_stay(queue_length: int) -> None:
    asked_for = context(2, ModelDemand("sd15", 0.0, queue_length=queue_length), ModelDemand("turbo", 9.0))

    assert place(asked_for, {"turbo": 2}, {}) == (
        WorkerAssignment("w000", "sim:0", "sd15", 1, 1),
        WorkerAssignment("w001", "sim:1", "turbo", 1, 1),
    )


def test_of_many_workers_one_is_given_to_those_who_wait() -> None:
    asked_for = context(4, ModelDemand("sd15", 0.0, queue_length=3), ModelDemand("turbo", 9.0))

    assert [each.model for each in place(asked_for, {"turbo": 4}, {})] == ["sd15", "turbo", "turbo", "turbo"]


def test_the_last_worker_stays_with_those_who_wait_for_it() -> None:
    both = ModelDemand("turbo", 0.0, queue_length=3), ModelDemand("sd15", 0.0, queue_length=1)

    assert [each.model for each in place(context(1, *both), {"turbo": 0, "sd15": 1}, {})] == ["sd15"]


def test_an_average_is_of_forty_requests_or_of_two_minutes() -> None:
    assert [settled_weight(0.3, rate) for rate in (0.0, 1.0, 4.0, 100.0)] == [1 / 120, 1 / 40, 0.1, 0.3]


def test_a_request_weighs_a_fiftieth_in_an_average_of_shares() -> None:
    assert share_weight(0) == 0.0
    assert share_weight(1) == pytest.approx(0.02)
    assert share_weight(50) == pytest.approx(1 - 0.98**50)
