"""The policy that plans by the joint problem: from reports to a plan for the routers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.demand import StartShare
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Replica, ReplicaKind, WorkerAssignment
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE, entry_of
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput, ReplicaView
from pentimento.policies.plan.joint.forecast import DemandForecast
from pentimento.policies.plan.joint.policy import JointMemory, JointPolicy
from pentimento.policies.plan.joint.quality import LearntQuality
from pentimento.policies.plan.settings import ModelQuality, ServingSettings
from tests.unit.policies.plan.fleets import SD15, TURBO, context, counts, decide, profiles, repeat, worker

QUALITIES = (ModelQuality("sd15", 1.0), ModelQuality("turbo", 0.8, 0.2, 0.95))
SETTINGS = ServingSettings(heavy="sd15", light="turbo", slo_s=5.0, qualities=QUALITIES)
ALLOCATOR = JointPolicy(SETTINGS)
MIX = (StartShare(0, 60, NOISE, 50), StartShare(20, 20, IMAGE, 50, "turbo"), StartShare(15, 20, LATENT, 50, "sd15"))


def asked(rate: float, *starts: StartShare, devices: int = 16) -> PlanInput:
    return context(devices, ModelDemand("sd15", rate, starts=starts))


def entered(decision: Decision, start: str, draw: float = 0.5) -> tuple[str, str]:
    """Return the model and the cascade of a request with that start."""
    entry = entry_of(decision.plan.pools, start, draw)
    assert entry is not None
    return entry.pool.model, entry.cascade


def test_heavy_model_serves_load_it_can_carry() -> None:
    """Seven devices in batches of two (twice 2.16 s is within the SLO) carry 6.5 a second. The eighth is worth less
    there than as room for more requests, by the light model."""
    decision = decide(ALLOCATOR, asked(6.0, devices=8))

    assert counts(decision) == {"sd15": 7, "turbo": 1}
    assert decision.plan.admission_rate == 1.0
    assert entered(decision, NOISE) == ("sd15", "noise:sd15~turbo")
    stands_in = next(one for one in decision.plan.cascades if one.cascade == "noise:sd15~turbo")
    assert [(stage.pool, stage.thresholds) for stage in stands_in.stages] == [("sd15", ()), ("turbo", ())]


@pytest.mark.parametrize("load_s", [20.0, 60.0, 90.0, 600.0])
def test_slow_load_is_made_where_none_is_served(load_s: float) -> None:
    """No held model generates an image within the SLO."""
    loading = tuple(replace(profile, load_s=load_s) for profile in profiles(turbo=TURBO, sd15=SD15))
    allocator = JointPolicy(replace(SETTINGS, slo_s=1.0))

    decision = decide(allocator, replace(asked(1.0, devices=4), profiles=loading))

    assert counts(decision)["turbo"] >= 1
    assert decision.plan.admission_rate == 1.0


def styled(seen: PlanInput) -> PlanInput:
    """Return the input with another resident LoRA on each worker."""
    views = (
        replace(view, replica=replace(view.replica, resident_models=(*view.replica.resident_models, f"lora-{index}")))
        for index, view in enumerate(seen.replicas)
    )
    return replace(seen, replicas=tuple(views))


def test_resident_loras_change_no_plan() -> None:
    """Loads of models take long, so that resident models count."""
    loading = tuple(replace(profile, load_s=20.0) for profile in profiles(turbo=TURBO, sd15=SD15))
    seen = replace(asked(16.0, devices=8), profiles=loading)
    plain, later = repeat(ALLOCATOR, seen, 6, 5.0)

    with_loras, later_with_loras = repeat(ALLOCATOR, styled(seen), 6, 5.0)

    assert later_with_loras == later
    assert with_loras == plain


def test_cascade_defers_worst_images_beyond_heavy_capacity() -> None:
    decision = decide(ALLOCATOR, asked(16.0))

    model, name = entered(decision, NOISE, 0.99)
    assert model == "turbo"
    cascade = next(one for one in decision.plan.cascades if one.cascade == name)
    assert [stage.pool for stage in cascade.stages] == ["turbo", "sd15"]
    assert 0.0 < cascade.stages[0].thresholds[0].confidence < 1.0


def test_hits_raise_threshold() -> None:
    """The same demand: with hits fewer are sent through the light model's cascade."""
    without, with_hits = decide(ALLOCATOR, asked(16.0)), decide(ALLOCATOR, asked(16.0, *MIX))

    def threshold(decision: Decision) -> float:
        return max(
            (s.thresholds[0].confidence for c in decision.plan.cascades for s in c.stages if s.thresholds), default=1
        )

    assert threshold(with_hits) > threshold(without)


def thinnable(rate: float, spare: float, lost: float, devices: int = 16) -> PlanInput:
    """Return shares of steps that may be left out, and of the lost quality, for a hundred requests."""
    steps = ThinnableSteps(100, 100.0 * spare, 100.0 * lost)
    return context(devices, ModelDemand("sd15", rate, thinnable=steps))


def settled(seen: PlanInput) -> Decision:
    """Return the plan after a few hundred requests: it learns thinnable steps from them."""
    last, _ = repeat(ALLOCATOR, seen, 8, 5.0)
    return last


def heavy_share(decision: Decision) -> float:
    """Return the heavy model's share of requests from noise, without deferred ones."""
    heavy = [route for pool in decision.plan.pools if pool.model == "sd15" for route in pool.routes]
    return sum(route.share for route in heavy if route.route == NOISE)


def test_thinning_raises_heavy_share() -> None:
    """With half of its steps the heavy model runs nearly all requests, for a hundredth of quality."""
    whole, thinned = settled(thinnable(24.0, 0.0, 0.0)), settled(thinnable(24.0, 0.5, 0.01))

    assert heavy_share(whole) < 0.5 < heavy_share(thinned)
    assert {pool.model for pool in thinned.plan.pools if pool.thins} == {"sd15"}
    assert not any(pool.thins for pool in whole.plan.pools)


@pytest.mark.parametrize(("rate", "lost"), [(24.0, 0.4), (3.0, 0.01)], ids=["costs more", "light load"])
def test_thinning_is_not_planned_without_gain(rate: float, lost: float) -> None:
    assert not any(pool.thins for pool in settled(thinnable(rate, 0.5, lost)).plan.pools)


def test_thinning_raises_admission_rate() -> None:
    """The fleet has no light model."""
    alone = JointPolicy(replace(SETTINGS, light=""))
    whole, _ = repeat(alone, thinnable(36.0, 0.0, 0.0), 8, 5.0)
    thinned, _ = repeat(alone, thinnable(36.0, 0.5, 0.01), 8, 5.0)

    assert thinned.plan.admission_rate == pytest.approx(2.0 * whole.plan.admission_rate, rel=0.05)


def test_latents_go_to_their_model() -> None:
    decision = decide(ALLOCATOR, asked(200.0, *MIX))

    entry = entry_of(decision.plan.pools, LATENT, 0.5)
    assert entry is not None
    assert (entry.pool.model, entry.cascade) == ("sd15", "")


def test_excess_demand_lowers_admission_rate() -> None:
    """Sixteen light devices in batches of 16 carry 332 a second: no deferral is left."""
    decision = decide(ALLOCATOR, asked(1000.0))

    assert counts(decision) == {"turbo": 16}
    assert 0.2 < decision.plan.admission_rate < 0.4


@pytest.mark.parametrize("slo_s", [0.01, 0.19])
def test_impossible_slo_becomes_quickest_way(slo_s: float) -> None:
    """The light model takes 0.1 s, and a request waits as long for its batch."""
    decision = decide(JointPolicy(replace(SETTINGS, slo_s=slo_s)), asked(6.0))

    assert decision.plan.admission_rate == 1.0
    assert entered(decision, NOISE) == ("turbo", "")
    assert decision.plan.notes == (f"no image can be generated within {slo_s:g} s; 0.2 s are planned for",)
    assert decide(ALLOCATOR, asked(6.0)).plan.notes == ()


def test_impossible_slo_admits_capacity_of_devices() -> None:
    """Sixteen devices generate 160 a second, one image at a time."""
    decision = decide(JointPolicy(replace(SETTINGS, slo_s=0.01)), asked(320.0))

    assert decision.plan.admission_rate == pytest.approx(0.5, rel=0.05)


def test_load_is_made_only_where_it_pays() -> None:
    """All devices hold the heavy model, and 8 a second are slightly too many for it."""
    slow = tuple(replace(profile, load_s=50.0) for profile in profiles(turbo=TURBO, sd15=SD15))
    quick = replace(asked(16.0), profiles=tuple(replace(profile, load_s=0.1) for profile in slow))
    dear = replace(quick, profiles=slow)

    assert counts(decide(ALLOCATOR, quick))["turbo"] > counts(decide(ALLOCATOR, dear)).get("turbo", 0) - 1
    still = JointPolicy(SETTINGS, horizon_s=50.0)
    assert counts(decide(still, dear)) == {"sd15": 16}


def test_devices_keep_models_within_dwell_time() -> None:
    slow = tuple(replace(profile, load_s=10.0) for profile in profiles(turbo=TURBO, sd15=SD15))
    first = decide(ALLOCATOR, replace(asked(16.0), profiles=slow))
    swings = [first]
    for number, rate in enumerate((14.0, 17.0, 15.0, 16.0), start=1):
        again = replace(asked(rate), profiles=slow, now_s=5.0 * number, last=swings[-1])
        swings.append(decide(ALLOCATOR, again))

    assert [counts(decision) for decision in swings] == [counts(first)] * 5


def test_steady_demand_keeps_plan() -> None:
    last, decisions = repeat(ALLOCATOR, asked(16.0, *MIX), 20, 5.0)

    assert {tuple(decision.plan.assignments) for decision in decisions[10:]} == {last.plan.assignments}


@pytest.mark.parametrize(("starts", "worker_count"), [((), 15), (MIX, 14)])
def test_wavering_light_demand_keeps_plan(starts: tuple[StartShare, ...], worker_count: int) -> None:
    """Batches of one and of two, on any few devices, are equally good."""
    first = last = decide(ALLOCATOR, asked(1.0, *starts))
    for number, rate in enumerate((0.2, 1.6, 0.4, 1.2, 0.0, 2.0, 0.6), start=1):
        last = decide(ALLOCATOR, replace(asked(rate, *starts), now_s=5.0 * number, last=last))
        assert last.plan == first.plan

    assert {assignment.max_batch_size for assignment in first.plan.assignments} == {1}
    (used,) = (pool for pool in first.plan.pools if pool.routes)
    assert (used.pool, len(used.worker_ids)) == ("sd15", worker_count)


def heavy_sizes(decision: Decision) -> set[int]:
    return {one.max_batch_size for one in decision.plan.assignments if one.model == "sd15"}


def test_batches_are_as_small_as_the_load_allows() -> None:
    """Fifteen devices carry 8.4 a second in batches of one, 13.9 in batches of two."""
    sizes = {rate: heavy_sizes(decide(ALLOCATOR, asked(rate))) for rate in (4.0, 6.5, 8.5)}

    assert sizes == {4.0: {1}, 6.5: {1}, 8.5: {2}}


def test_batch_size_stays_until_smaller_has_room() -> None:
    """Batches of one would be 77 % busy at 6.5 a second and 53 % at 4.5."""
    larger = decide(ALLOCATOR, asked(8.5))

    def later(rate: float) -> set[int]:
        last = replace(larger, memory=JointMemory(DemandForecast(rate=rate), LearntQuality.empty(SETTINGS)))
        return heavy_sizes(decide(ALLOCATOR, replace(asked(rate), last=last)))

    assert (later(6.5), later(4.5)) == ({2}, {1})


def test_spare_devices_help_busy_model() -> None:
    """Ten hold the light model after a peak. Six heavy ones carry five a second, and would be 90 % busy with it."""
    views = tuple(worker(number, "sd15" if number < 6 else "turbo") for number in range(16))

    decision = decide(ALLOCATOR, replace(asked(5.0), replicas=views))

    assert counts(decision) == {"sd15": 7, "turbo": 9}


def test_running_load_counts_as_done() -> None:
    """The plan in force gives a worker to the light model, which it does not hold yet; the next plan keeps that."""
    first = decide(ALLOCATOR, asked(16.0))
    given = [one.worker_id for one in first.plan.assignments if one.model == "turbo"]
    moved = replace(first, plan=replace(first.plan, assignments=tuple(_given_to_others(first, given))))

    again = decide(ALLOCATOR, replace(asked(16.0), now_s=5.0, last=moved))

    assert {one.worker_id: one.model for one in again.plan.assignments} == {
        one.worker_id: one.model for one in moved.plan.assignments
    }


@pytest.mark.parametrize("held", ["turbo", "another"])
def test_workers_that_lost_their_model_are_planned_again(held: str) -> None:
    """Started again with fewer models, or found to hold other weights under that name than are registered; meanwhile
    requests wait for the model."""
    busy = replace(asked(1.0, devices=4), demand=(ModelDemand("sd15", 1.0, queue_length=3),))
    first = decide(ALLOCATOR, busy)
    heavy = [one.worker_id for one in first.plan.assignments if one.model == "sd15"][:2]
    views = tuple(
        worker(number, held, ("turbo",)) if view.replica.instance_id in heavy else view
        for number, view in enumerate(busy.replicas)
    )

    again = decide(ALLOCATOR, replace(busy, replicas=views, now_s=5.0, last=first))

    assert {one.model for one in again.plan.assignments if one.worker_id in heavy} == {"turbo"}


def _given_to_others(decision: Decision, given: list[str]) -> list[WorkerAssignment]:
    last = [one.worker_id for one in decision.plan.assignments][-len(given) :]
    first = [one.worker_id for one in decision.plan.assignments][: len(given)]
    others = last if set(last) != set(given) else first
    return [replace(one, model="turbo" if one.worker_id in others else "sd15") for one in decision.plan.assignments]


def test_model_without_profile_is_noted_and_not_planned() -> None:
    known = replace(asked(16.0), profiles=profiles(sd15=SD15))

    decision = decide(ALLOCATOR, known)

    assert counts(decision) == {"sd15": 16}
    assert decision.plan.notes == ("turbo is not planned on its devices: it has no profile there",)
    with pytest.raises(FailedPrecondition, match="turbo is not planned"):
        ALLOCATOR(replace(known, profiles=()))


def test_model_too_large_for_device_is_not_planned() -> None:
    big = tuple(replace(profile, memory_bytes=9) for profile in profiles(sd15=SD15))
    little = tuple(ReplicaView(replace(worker(number).replica, device_memory_bytes=8)) for number in range(4))
    there = PlanInput(0.0, little, (ModelDemand("sd15", 1.0),), (*big, *profiles(turbo=TURBO)))

    decision = decide(ALLOCATOR, there)

    assert counts(decision) == {"turbo": 4}
    assert decision.plan.notes == ("sd15 is not planned on its devices: it does not fit into 8 bytes",)


def test_kinds_of_device_have_their_own_costs() -> None:
    """The heavy model takes four times as long on a small device: batches of one there would be late."""
    kinds = [("big", 4), ("small", 4)]
    views = tuple(
        ReplicaView(
            Replica(f"{kind}{i}", ReplicaKind.UNET_WORKER, "sim:1", 1, "", kind, 0, ("sd15", "turbo"), ("sd15",))
        )
        for kind, count in kinds
        for i in range(count)
    )
    on_big = tuple(replace(profile, device="big") for profile in profiles(turbo=TURBO, sd15=SD15))
    on_small = tuple(replace(profile, device="small", latency_s=4 * profile.latency_s) for profile in on_big)
    there = PlanInput(0.0, views, (ModelDemand("sd15", 8.0),), (*on_big, *on_small))

    held = {one.worker_id: one.model for one in decide(ALLOCATOR, there).plan.assignments}

    assert {model for name, model in held.items() if name.startswith("big")} == {"sd15"}
    assert "turbo" in {model for name, model in held.items() if name.startswith("small")}


def test_deferred_requests_are_not_demand_again() -> None:
    """Ten requests a second arrive; five are deferred to the heavy model."""
    demand = (ModelDemand("turbo", 10.0, sent_on_per_s=5.0), ModelDemand("sd15", 5.0))

    memory = decide(ALLOCATOR, context(16, *demand)).memory

    assert memory.demand.rate == 10.0


def test_curve_follows_counted_confidences() -> None:
    """All confidences are low: every threshold defers more requests than in the profile."""
    low = (100, *(0,) * 19)
    seen = context(16, ModelDemand("turbo", 4.0, confidences=low))

    last, _ = repeat(ALLOCATOR, seen, 5, 5.0)

    (told,) = last.deferrals
    assert (told.cascade, told.measured_shares[9]) == ("turbo>sd15", pytest.approx(0.5))
    # Before the last round the profile's fifty images were a ninth of the average; the round forgets a fifth.
    assert told.shares[9] == pytest.approx(1.0 - 0.5 * 0.8 / 9)


def test_unused_pools_have_all_workers_of_model() -> None:
    calm, busy = decide(ALLOCATOR, asked(1.0)), decide(ALLOCATOR, asked(1000.0))

    assert {pool.pool for pool in calm.plan.pools} == {pool.pool for pool in busy.plan.pools}
    unused = [pool for pool in busy.plan.pools if pool.model == "turbo" and not pool.routes]
    assert unused
    assert {len(pool.worker_ids) for pool in unused} == {16}


@settings(max_examples=20, deadline=None)
@given(
    rate=st.floats(0.0, 500.0),
    hits=st.tuples(st.integers(0, 50), st.integers(0, 50)),
    devices=st.integers(0, 20),
    resident=st.sampled_from(["sd15", "turbo"]),
)
def test_every_plan_is_valid_and_serves_every_start(
    rate: float, hits: tuple[int, int], devices: int, resident: str
) -> None:
    starts = (StartShare(0, 50, NOISE, 50), StartShare(20, hits[0], IMAGE, 50), StartShare(15, hits[1], LATENT, 50))
    demand = ModelDemand("turbo", rate, starts=starts)

    decision = decide(ALLOCATOR, context(devices, demand, resident=resident))

    assert len(decision.plan.assignments) == devices
    assert 0.0 <= decision.plan.admission_rate <= 1.0
    if devices:
        assert entry_of(decision.plan.pools, NOISE, 0.5) is not None
