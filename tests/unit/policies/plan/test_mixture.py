from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.fleet import StartShare
from pentimento.policies.plan.inputs import Decision, ModelDemand, PlanInput
from pentimento.policies.plan.mixture import (
    MixtureLoad,
    MixtureMode,
    MixturePolicy,
    PidGains,
    PidMemory,
    carries,
    large_count,
    pid_step,
)
from pentimento.policies.plan.settings import ServingSettings
from pentimento.policies.serving.entry import IMAGE, NOISE, SPARE
from tests.unit.policies.plan.fleets import counts, decide, hits, profiles, repeat, worker

# MI210, seconds an image, from MoDM's artefact.
SECONDS = {"sd35": 91.5, "sdxl": 16.5, "sana": 6.5}
SETTINGS = ServingSettings(heavy="sd35", small=("sdxl", "sana"), batch_sizes=(1,), demand_weight=1.0)
SHARES = st.lists(st.tuples(st.sampled_from((0.1, 0.2, 0.3, 0.5, 0.6)), st.floats(0, 0.2)), max_size=5)


def asked(per_minute: float, now_s: float = 0.0, hit_share: float = 0.75) -> PlanInput:
    hit_count = round(100 * hit_share)
    demand = ModelDemand("sd35", per_minute / 60, starts=hits((0, 100 - hit_count), (25, hit_count)))
    tables = profiles(**{model: {1: seconds} for model, seconds in SECONDS.items()})
    fleet = tuple(worker(index, "sd35", tuple(SECONDS)) for index in range(16))
    return PlanInput(now_s, fleet, (demand,), tables)


@settings(deadline=None, max_examples=50)
@given(rate=st.floats(0.01, 5.0), starts=SHARES, devices=st.integers(1, 20), ratio=st.floats(1.0, 20.0))
def test_quality_mode_takes_as_many_large_models_as_the_constraints_allow(
    rate: float, starts: list[tuple[float, float]], devices: int, ratio: float
) -> None:
    load = MixtureLoad.of(rate, starts)
    allowed = [count for count in range(devices + 1) if carries(load, devices, count, 0.1, 0.1 * ratio)]

    found = large_count(MixtureMode.QUALITY, load, devices, 0.1, 0.1 * ratio)

    assert found == (max(allowed) if allowed else found)
    assert 0 <= found <= devices


def test_throughput_mode_divides_by_the_work() -> None:
    load = MixtureLoad.of(1.0, [(0.5, 0.75)])

    # W_miss = 0.25; W_hit = 0.375, weighted by 1/5 = 0.075: 0.25 / 0.325 of 13.
    assert large_count(MixtureMode.THROUGHPUT, load, 13, 1.0, 5.0) == 10


def test_without_any_work_throughput_mode_has_large_models_alone() -> None:
    assert large_count(MixtureMode.THROUGHPUT, MixtureLoad.of(0.0, []), 4, 1.0, 5.0) == 4


def test_more_load_means_fewer_large_models() -> None:
    found = [counts(decide(MixturePolicy(SETTINGS), asked(rate)))["sd35"] for rate in (6, 12, 18, 22)]

    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_a_hit_costs_what_is_left_of_its_own_steps() -> None:
    """At 50 steps by the settings, half of the requests save 10 of their own 20: as at 25 of 50."""
    own = (StartShare(0, 50, NOISE, 20), StartShare(10, 50, IMAGE, 20))
    busy = asked(30, hit_share=0.5)
    told = replace(busy, demand=(replace(busy.demand[0], starts=own),))

    assert decide(MixturePolicy(SETTINGS), told) == decide(MixturePolicy(SETTINGS), busy)


def test_idle_large_workers_take_hits() -> None:
    decision = decide(MixturePolicy(SETTINGS), asked(18))

    assert SPARE in [route.route for route in decision.plan.pools[0].routes]


def test_the_small_model_gives_way_to_a_smaller_one_when_it_cannot_keep_up_and_comes_back() -> None:
    allocator = MixturePolicy(SETTINGS)
    busy, _ = repeat(allocator, asked(40, hit_share=0.85), times=4, every_s=180.0)
    calm, _ = repeat(allocator, asked(20, now_s=800.0), times=1, every_s=180.0)

    back = decide(allocator, replace(asked(20, now_s=800.0), last=busy))

    assert set(counts(busy)) == {"sd35", "sana"}
    assert set(counts(calm)) == set(counts(back)) == {"sd35", "sdxl"}


def test_the_small_model_changes_once_in_its_dwell_time() -> None:
    allocator = MixturePolicy(SETTINGS, dwell_s=60.0)
    first = decide(allocator, asked(40, now_s=0.0, hit_share=0.85))
    second = decide(allocator, replace(asked(6, now_s=30.0), last=first))
    third = decide(allocator, replace(asked(6, now_s=61.0), last=second))

    assert [small_pool(decision) for decision in (first, second, third)] == ["sana", "sana", "sdxl"]


def test_devices_change_their_models_once_in_the_dwell_time() -> None:
    """The small model stays the same; fewer large devices are wanted at once, and get their time."""
    allocator = MixturePolicy(SETTINGS, gains=PidGains(period_s=5.0))
    decisions = [decide(allocator, asked(6))]
    for number in range(1, 26):
        at_s = 5.0 * number
        decisions.append(decide(allocator, replace(asked(30, now_s=at_s), last=decisions[-1])))

    large = [counts(decision)["sd35"] for decision in decisions]
    changed = [number for number in range(1, 26) if large[number] != large[number - 1]]
    assert changed == [12, 24]
    assert large[24] < large[12] < large[0]


def test_a_few_requests_of_a_slow_fleet_change_little() -> None:
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


def test_one_large_worker_always_stays() -> None:
    last, _ = repeat(MixturePolicy(SETTINGS, MixtureMode.THROUGHPUT), asked(26, hit_share=1.0), 20, 180.0)

    assert counts(last)["sd35"] == 1


def test_allocation_settles_under_steady_load() -> None:
    _, decisions = repeat(MixturePolicy(SETTINGS), asked(18), times=20, every_s=180.0)

    large = [counts(decision)["sd35"] for decision in decisions]
    assert len(set(large[-8:])) == 1


@pytest.mark.parametrize(("hit_share", "rate"), [(0.0, 0.0), (0.0, 3000.0), (1.0, 3000.0)])
def test_no_load_and_far_too_much_give_a_plan(hit_share: float, rate: float) -> None:
    decision = decide(MixturePolicy(SETTINGS), asked(rate, hit_share=hit_share))

    assert sum(counts(decision).values()) == 16


@settings(deadline=None, max_examples=50)
@given(target=st.floats(1, 16), start=st.floats(1, 16))
def test_the_controller_reaches_its_target(target: float, start: float) -> None:
    memory = PidMemory(start, 0.0, None)
    for _ in range(60):
        memory = pid_step(PidGains(), memory, target, 180.0, 1.0, 16.0)

    assert memory.value == pytest.approx(target, abs=0.3)


def test_an_output_at_its_limit_winds_nothing_up() -> None:
    memory = PidMemory(16.0, 0.0, 0.0)
    for _ in range(50):
        memory = pid_step(PidGains(), memory, 40.0, 180.0, 1.0, 16.0)

    assert memory.value == 16.0
    assert abs(memory.integral) < 1e-9


def test_an_error_that_pushes_past_a_near_limit_is_not_integrated() -> None:
    """12 + 0.6 * 4 + 0.05 * 12 is 0.2 beyond the limit: forgetting that much alone would keep 8 of the integral."""
    memory = pid_step(PidGains(derivative=0.0), PidMemory(12.0, 0.0, None), 16.0, 180.0, 1.0, 14.8)

    assert memory == PidMemory(14.8, 0.0, 4.0)


def test_a_step_of_the_controller_is_the_sum_done_by_hand() -> None:
    """Three minutes: 0.6 of 4, 0.05 of the integral 2 + 4 * 3, 0.05 of the slope (4 - 1) / 3."""
    memory = pid_step(PidGains(0.6, 0.05, 0.05, 60.0), PidMemory(10.0, 2.0, 1.0), 14.0, 180.0, 1.0, 16.0)

    assert memory.value == pytest.approx(10.0 + 0.6 * 4 + 0.05 * 14 + 0.05 * 1)
    assert (memory.integral, memory.error) == (pytest.approx(14.0), 4.0)


def test_a_sixth_of_the_period_moves_by_a_sixth() -> None:
    """Half a minute of three: a sixth of 0.6 of 4, 0.05 of 4 / 2, 0.05 of (4 - 1) / 0.5."""
    memory = pid_step(PidGains(), PidMemory(10.0, 0.0, 1.0), 14.0, 30.0, 1.0, 16.0)

    assert memory.value == pytest.approx(10.0 + (2.4 + 0.1 + 0.3) / 6)


def test_a_late_step_moves_no_further_than_a_period() -> None:
    """Six minutes: 0.6 of 4, 0.05 of 4 * 6, 0.05 of (4 - 1) / 6."""
    memory = pid_step(PidGains(), PidMemory(10.0, 0.0, 1.0), 14.0, 360.0, 1.0, 16.0)

    assert memory.value == pytest.approx(10.0 + 2.4 + 1.2 + 0.025)


def test_two_steps_at_once_move_once() -> None:
    assert pid_step(PidGains(), PidMemory(10.0, 0.0, 1.0), 14.0, 0.0, 1.0, 16.0) == PidMemory(10.0, 0.0, 4.0)


def test_in_no_time_a_value_beyond_its_limit_is_cut_and_the_integral_stays() -> None:
    """Four of sixteen devices have gone between two looks at the same moment."""
    assert pid_step(PidGains(), PidMemory(16.0, 3.0, 1.0), 12.0, 0.0, 1.0, 12.0) == PidMemory(12.0, 3.0, -4.0)


def test_what_an_integral_pushes_beyond_the_limit_is_forgotten() -> None:
    """A whole period: 16 - 0.6 * 1 + 0.05 * (40 - 3) is 1.25 beyond the limit, 25 of the integral."""
    memory = pid_step(PidGains(derivative=0.0), PidMemory(16.0, 40.0, -1.0), 15.0, 180.0, 1.0, 16.0)

    assert memory.value == 16.0
    assert memory.integral == pytest.approx(37.0 - 25.0)


@settings(deadline=None, max_examples=50)
@given(interval_s=st.floats(0.5, 180.0), start=st.floats(1, 16), target=st.floats(1, 16))
def test_the_course_is_the_same_at_every_interval(interval_s: float, start: float, target: float) -> None:
    """A gain above 1 a step, as unscaled ones have every few seconds, would throw it from one limit to the other."""
    memory, course = PidMemory(start, 0.0, None), []
    for _ in range(int(3600 / interval_s)):
        memory = pid_step(PidGains(), memory, target, interval_s, 1.0, 16.0)
        course.append(memory.value)

    assert max(abs(value - target) for value in course) <= abs(start - target) + 1e-9
    overshoot = max((value - target) * (1 if target > start else -1) for value in course)
    assert overshoot <= 0.25 * abs(start - target) + 1e-9
    assert course[-1] == pytest.approx(target, abs=0.05 * abs(start - target) + 1e-9)


def test_a_small_error_winds_nothing_up_either() -> None:
    assert pid_step(PidGains(), PidMemory(16.0, 0.0, 0.5), 16.5, 60.0, 1.0, 16.0) == PidMemory(16.0, 0.0, 0.5)


def test_devices_that_just_carry_the_misses_leave_the_others_to_the_small_model() -> None:
    """Half a request a second misses, which five large devices of a tenth each carry; a second with half of its steps
    saved is carried by one small device, and by no large one."""
    allocator = MixturePolicy(SETTINGS, headroom=1.0)
    demand = ModelDemand("sd35", 1.5, starts=hits((0, 1), (25, 2)))
    tables = profiles(sd35={1: 10.0}, sdxl={1: 1.0}, sana={1: 0.5})
    fleet = tuple(worker(index, "sd35", tuple(SECONDS)) for index in range(6))

    decision = decide(allocator, PlanInput(0.0, fleet, (demand,), tables))

    assert counts(decision) == {"sd35": 5, "sdxl": 1}


def test_where_misses_with_room_would_starve_the_hits_both_get_their_share_of_the_devices() -> None:
    """52 a minute: misses are 11.1 large devices' work, hits 3.9 small ones'; with a tenth to spare they are 16.7."""
    allocator = MixturePolicy(replace(SETTINGS, expected_per_s=52 / 60))
    demand = ModelDemand("sd35", 52 / 60, starts=hits((0, 14), (10, 86)))
    crowded = replace(asked(52), demand=(demand,))

    assert counts(decide(allocator, crowded)) == {"sd35": 12, "sana": 4}
