"""Decide the number of large devices as MoDM's monitor does."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.demand import StartShare
from pentimento.domain.fleet import PoolPlan, SteeredCount
from pentimento.policies.plan.entry import EVERY_START, IMAGE, NOISE, SPARE
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.mixture import (
    HITS,
    SPARING,
    MixtureLoad,
    MixtureMemory,
    MixturePolicy,
    PidMemory,
    ResidentMixture,
    carries,
    large_count,
)
from pentimento.policies.plan.settings import MixtureMode, ServingSettings
from tests.unit.policies.plan.fleets import counts, decide, hits, profiles, repeat, worker

# MI210, seconds an image, from MoDM's artefact.
SECONDS = {"sd35": 91.5, "sdxl": 16.5, "sana": 6.5}


DEFAULTS = ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,))
SETTINGS = replace(DEFAULTS, demand_weight=1.0)


SHARES = st.lists(st.tuples(st.sampled_from((0.1, 0.2, 0.3, 0.5, 0.6)), st.floats(0, 0.2)), max_size=5)


def asked(per_minute: float, now_s: float = 0.0, hit_share: float = 0.75) -> PlanInput:
    hit_count = round(100 * hit_share)
    demand = ModelDemand("sd35", per_minute / 60, starts=hits((0, 100 - hit_count), (25, hit_count)))
    tables = profiles(**{model: {1: seconds} for model, seconds in SECONDS.items()})
    fleet = tuple(worker(index, "sd35", tuple(SECONDS)) for index in range(16))
    return PlanInput(now_s, fleet, (demand,), tables)


@settings(deadline=None, max_examples=50)
@given(rate=st.floats(0.01, 5.0), starts=SHARES, devices=st.integers(1, 20), ratio=st.floats(1.0, 20.0))
def test_large_count_quality_mode_takes_most_that_fit(
    rate: float, starts: list[tuple[float, float]], devices: int, ratio: float
) -> None:
    load = MixtureLoad.of(rate, starts)
    allowed = [count for count in range(devices + 1) if carries(load, devices, count, 0.1, 0.1 * ratio)]

    found = large_count(MixtureMode.QUALITY, load, devices, 0.1, 0.1 * ratio)

    assert found == (max(allowed) if allowed else found)
    assert 0 <= found <= devices


def test_large_count_throughput_mode_divides_by_work() -> None:
    load = MixtureLoad.of(1.0, [(0.5, 0.75)])

    # W_miss = 0.25; W_hit = 0.375, weighted by 1/5 = 0.075: 0.25 / 0.325 of 13.
    assert large_count(MixtureMode.THROUGHPUT, load, 13, 1.0, 5.0) == 10


def test_large_count_throughput_mode_without_work_is_all() -> None:
    assert large_count(MixtureMode.THROUGHPUT, MixtureLoad.of(0.0, []), 4, 1.0, 5.0) == 4


def test_mixture_more_load_means_fewer_large_models() -> None:
    found = [counts(decide(MixturePolicy(SETTINGS), asked(rate)))["sd35"] for rate in (6, 12, 18, 22)]

    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_mixture_hit_costs_rest_of_its_steps() -> None:
    """At 50 steps by the settings, half of the requests save 10 of their own 20: as at 25 of 50."""
    own = (StartShare(0, 50, NOISE, 20), StartShare(10, 50, IMAGE, 20))
    busy = asked(30, hit_share=0.5)
    told = replace(busy, demand=(replace(busy.demand[0], starts=own),))

    assert decide(MixturePolicy(SETTINGS), told) == decide(MixturePolicy(SETTINGS), busy)


def test_mixture_idle_large_workers_take_hits() -> None:
    decision = decide(MixturePolicy(SETTINGS), asked(18))

    assert SPARE in [route.route for route in decision.plan.pools[0].routes]


def test_mixture_smaller_model_takes_over_and_returns() -> None:
    allocator = MixturePolicy(SETTINGS)
    busy, _ = repeat(allocator, asked(40, hit_share=0.85), times=4, every_s=180.0)
    calm, _ = repeat(allocator, asked(20, now_s=800.0), times=1, every_s=180.0)

    back = decide(allocator, replace(asked(20, now_s=800.0), last=busy))

    assert set(counts(busy)) == {"sd35", "sana"}
    assert set(counts(calm)) == set(counts(back)) == {"sd35", "sdxl"}


def test_mixture_small_model_changes_once_in_dwell_time() -> None:
    allocator = MixturePolicy(SETTINGS)
    first = decide(allocator, asked(40, now_s=0.0, hit_share=0.85))
    second = decide(allocator, replace(asked(6, now_s=30.0), last=first))
    third = decide(allocator, replace(asked(6, now_s=61.0), last=second))

    assert [small_pool(decision) for decision in (first, second, third)] == ["sana", "sana", "sdxl"]


def test_mixture_devices_change_once_in_dwell_time() -> None:
    """The small model stays the same; fewer large devices are wanted at once, and get their time."""
    allocator = MixturePolicy(replace(SETTINGS, damping_period_s=5.0))
    decisions = [decide(allocator, asked(6))]
    for number in range(1, 26):
        at_s = 5.0 * number
        decisions.append(decide(allocator, replace(asked(30, now_s=at_s), last=decisions[-1])))

    large = [counts(decision)["sd35"] for decision in decisions]
    changed = [number for number in range(1, 26) if large[number] != large[number - 1]]
    assert changed == [12, 24]
    assert large[24] < large[12] < large[0]


@pytest.mark.parametrize(("damping_period_s", "damped"), [(0.0, 13.0), (60.0, 13.18), (180.0, 14.03)])
def test_mixture_tells_target_and_damped_count(damping_period_s: float, damped: float) -> None:
    """15 large devices at 18 a minute and 13 at 30. A PID step moves it by 0.6 of the way and a little back for the
    slope; two minutes are two thirds of the paper's period."""
    settings = replace(SETTINGS, damping_period_s=damping_period_s, dwell_s=0.0)
    before = decide(MixturePolicy(settings), asked(18))

    after = decide(MixturePolicy(settings), replace(asked(30, now_s=120.0), last=before))

    assert before.steered == SteeredCount("sd35", 15, 15.0, 15)
    assert after.steered == SteeredCount("sd35", 13, pytest.approx(damped, abs=0.01), round(damped))
    assert counts(after)["sd35"] == round(damped)


@pytest.mark.parametrize(("mode", "large"), [(MixtureMode.QUALITY, 15), (MixtureMode.THROUGHPUT, 13)])
def test_mixture_mode_decides_count(mode: MixtureMode, large: int) -> None:
    """Throughput, Eq. 12: misses 0.25, hits 0.375 at 16.5 ÷ 91.5 of a miss: 16 * 0.25 / (0.25 + 0.0676) = 12.6."""
    assert counts(decide(MixturePolicy(replace(SETTINGS, modm_mode=mode)), asked(18)))["sd35"] == large


def test_mixture_few_requests_change_little() -> None:
    """One hit and then one miss in five seconds each, at 18 a minute."""
    steady, _ = repeat(MixturePolicy(SETTINGS), asked(18), times=5, every_s=60.0)
    sizes = set()
    for number, start in enumerate((0, 25) * 20):
        demand = ModelDemand("sd35", 0.2 + 0.2 * (number % 2), starts=hits((start, 1)))
        steady = decide(
            MixturePolicy(SETTINGS),
            replace(asked(18, now_s=300.0 + 5.0 * number), demand=(demand,), last=steady),
        )
        sizes.add(counts(steady)["sd35"])

    assert max(sizes) - min(sizes) <= 1


def small_pool(decision: Decision) -> str:
    return decision.plan.pools[1].model


def test_mixture_keeps_one_large_worker() -> None:
    last, _ = repeat(
        MixturePolicy(replace(SETTINGS, modm_mode=MixtureMode.THROUGHPUT)), asked(26, hit_share=1.0), 20, 180.0
    )

    assert counts(last)["sd35"] == 1


def test_mixture_settles_under_steady_load() -> None:
    _, decisions = repeat(MixturePolicy(SETTINGS), asked(18), times=20, every_s=180.0)

    large = [counts(decision)["sd35"] for decision in decisions]
    assert len(set(large[-8:])) == 1


@pytest.mark.parametrize(("hit_share", "rate"), [(0.0, 0.0), (0.0, 3000.0), (1.0, 3000.0)])
def test_mixture_extreme_load_gives_a_plan(hit_share: float, rate: float) -> None:
    decision = decide(MixturePolicy(SETTINGS), asked(rate, hit_share=hit_share))

    assert sum(counts(decision).values()) == 16


def test_mixture_devices_beyond_misses_go_to_small_model() -> None:
    """Half a request a second misses, which five large devices of a tenth each carry; a second with half of its steps
    saved is carried by one small device, and by no large one."""
    allocator = MixturePolicy(SETTINGS, headroom=1.0)
    demand = ModelDemand("sd35", 1.5, starts=hits((0, 1), (25, 2)))
    tables = profiles(sd35={1: 10.0}, sdxl={1: 1.0}, sana={1: 0.5})
    fleet = tuple(worker(index, "sd35", tuple(SECONDS)) for index in range(6))

    decision = decide(allocator, PlanInput(0.0, fleet, (demand,), tables))

    assert counts(decision) == {"sd35": 5, "sdxl": 1}


def test_mixture_misses_do_not_starve_hits() -> None:
    """52 a minute: misses are 11.1 large devices' work, hits 3.9 small ones'; with a tenth to spare they are 16.7."""
    allocator = MixturePolicy(replace(SETTINGS, expected_per_s=52 / 60))
    demand = ModelDemand("sd35", 52 / 60, starts=hits((0, 14), (10, 86)))
    crowded = replace(asked(52), demand=(demand,))

    assert counts(decide(allocator, crowded)) == {"sd35": 12, "sana": 4}


def names(count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"w{index:03d}" for index in range(first, first + count))


def test_mixture_large_model_gets_rest_of_hits() -> None:
    """0.3 a second, 75 % hits of half the steps: misses 0.075, hits 0.1125 full runs. 15 large devices of 0.9 / 91.5
    and one small one of 0.9 / 16.5 carry them, 16 large ones do not."""
    decision = decide(MixturePolicy(DEFAULTS), asked(18))

    assert counts(decision) == {"sd35": 15, "sdxl": 1}
    assert decision.plan.pools == (
        PoolPlan("sd35", "sd35", names(15), routes=SPARING),
        PoolPlan("sdxl", "sdxl", names(1, 15), routes=HITS),
    )
    assert {assignment.max_batch_size for assignment in decision.plan.assignments} == {1}


def test_mixture_without_hits_needs_no_small_model() -> None:
    decision = decide(
        MixturePolicy(ServingSettings(heavy="sd35", small=("sdxl",), batch_sizes=(1,))), asked(1, hit_share=0.0)
    )

    assert decision.plan.pools == (
        PoolPlan("sd35", "sd35", names(16), routes=EVERY_START),
        PoolPlan("sdxl", "sdxl", ()),
    )


def test_mixture_replaced_small_model_keeps_pool_for_queue() -> None:
    waiting = replace(asked(18), demand=(*asked(18).demand, ModelDemand("sana", 0.0, queue_length=2)))
    fleet = (*waiting.replicas[:-1], worker(15, "sana", ("sd35", "sdxl", "sana")))

    decision = decide(MixturePolicy(DEFAULTS), replace(waiting, replicas=fleet))

    assert decision.plan.pools[2] == PoolPlan("sana", "sana", ("w015",))


def routes_of(decision: Decision) -> dict[str, set[str]]:
    return {pool.model: {route.route for route in pool.routes} for pool in decision.plan.pools}


def test_resident_mixture_sends_images_to_small_model() -> None:
    allocator = ResidentMixture(ServingSettings(heavy="sd35", small=("absent", "sana")))
    models = ("sd35", "sana", "sd35", "other")
    fleet = tuple(worker(number, model, models) for number, model in enumerate(models))

    decision = decide(allocator, replace(asked(18), replicas=fleet))

    assert [(assignment.model, assignment.max_batch_size) for assignment in decision.plan.assignments] == [
        (model, 0) for model in models
    ]
    assert routes_of(decision) == {"sd35": {"noise", "latent"}, "sana": {"image"}, "other": set()}


def test_resident_mixture_without_small_worker_uses_heavy() -> None:
    allocator = ResidentMixture(ServingSettings(heavy="sd35", small=("sana",)))

    decision = decide(allocator, replace(asked(18), replicas=(worker(0, "sd35", ("sd35", "sana")),)))

    assert routes_of(decision) == {"sd35": {"noise", "latent", "image"}}


def test_mixture_load_is_in_full_runs() -> None:
    assert MixtureLoad.of(2.0, [(0.0, 0.2), (0.2, 0.5), (0.8, 0.25)]) == MixtureLoad(
        0.5, pytest.approx(2 * (0.4 + 0.05))
    )


@pytest.mark.parametrize(
    ("load", "count"),
    [(MixtureLoad(0.0, 0.0), 4), (MixtureLoad(1.0, 0.0), 4), (MixtureLoad(0.5, 7.0), 1), (MixtureLoad(9.0, 1.0), 4)],
)
def test_large_count_by_load(load: MixtureLoad, count: int) -> None:
    """A large device runs 1 a second, a small one 2.5."""
    assert large_count(MixtureMode.QUALITY, load, 4, 1.0, 2.5) == count


def test_mixture_plans_with_a_tenth_to_spare() -> None:
    """One small device runs 1 / 16.5 a second: it carries 0.9 of 2 / 16.5 hits alone, at half the steps."""
    allocator = MixturePolicy(DEFAULTS)
    # One of 16 devices is large and has no spare capacity here: 15 small ones.
    limit_per_s = 0.9 * (15 / 16.5 + 1 / 91.5) * 2

    below = decide(allocator, asked(60 * limit_per_s * 0.99, hit_share=1.0))
    above = decide(allocator, asked(60 * limit_per_s * 1.01, hit_share=1.0))

    assert (set(counts(below)), set(counts(above))) == ({"sd35", "sdxl"}, {"sd35", "sana"})


def test_mixture_memory_has_controller_demand_and_small_model() -> None:
    allocator = MixturePolicy(DEFAULTS)

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


def test_mixture_small_model_stays_for_dwell_time() -> None:
    allocator = MixturePolicy(DEFAULTS)
    busy = decide(allocator, asked(40, hit_share=0.85))

    def later(now_s: float) -> set[str]:
        return set(counts(decide(allocator, replace(asked(1, now_s=now_s), last=busy)))) - {"sd35"}

    assert (later(59.9), later(60.0)) == ({"sana"}, {"sdxl"})
