from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.emulation.costs import from_latencies
from lab.emulation.jobs import DeviceSettings
from lab.planners.registry import POLICIES
from lab.runs import Outcome, StartKind
from lab.simulator import Simulation
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario import Delays, Outage, SimulatedDevices, SimulatedModel
from lab.workloads import Workload
from pentimento.dataplane import Dataplane, DataplaneSettings, effects
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.fleet import Capability
from pentimento.policies.plan.inputs import Decision, PlanInput, hold_resident
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.plan.settings import ServingSettings
from pentimento.policies.thinning import ThinningMode, ThinningOption
from pentimento.profiles.costs import steady
from tests.lab.simulator.scenarios import SD15, arrivals, cascade, one_model, poisson, run, share


def test_the_same_seed_gives_the_same_records_and_another_one_others() -> None:
    scenario = replace(cascade("diffserve"), delays=Delays(route=steady(0.01, 0.5)))
    workload = poisson(10.0, 300)

    assert run(scenario, workload, seed=7) == run(scenario, workload, seed=7)
    assert run(scenario, workload, seed=7) != run(scenario, workload, seed=8)


def test_every_effect_is_performed() -> None:
    simulation = Simulation(cascade("resident"), poisson(1.0, 1), Random(1))

    assert simulation._performers.keys() == set(effects.EFFECTS)


def test_every_policy_answers_a_light_load_in_time() -> None:
    for policy in POLICIES:
        records = run(cascade(policy, rate=1.0), poisson(1.0, 100))

        assert [record.outcome for record in records] == [Outcome.COMPLETED] * 100, policy


@example("clipper-light", 1.0, 1, 0.0, True, [(0, 0.0, 5.0)])
@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    rate=st.floats(0.5, 60.0),
    devices=st.integers(1, 6),
    load_s=st.sampled_from([0.0, 3.0]),
    late=st.booleans(),
    outages=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 20), st.floats(0.1, 20)), max_size=3),
)
def test_every_arrival_ends_exactly_once(
    policy: str, rate: float, devices: int, load_s: float, late: bool, outages: list[tuple[int, float, float]]
) -> None:
    workload = poisson(rate, 120)
    broken = tuple(Outage(f"w0-{index % devices}", at_s, for_s) for index, at_s, for_s in outages)
    # Requests that arrive while no worker is planned wait for the default model: one that the policy's plans have.
    default = "turbo" if policy == "clipper-light" else "sd15"
    scenario = cascade(policy, devices, rate, load_s, outages=broken, answers_late=late, default_model=default)

    records = run(scenario, workload)

    assert [record.request_id for record in records] == [f"r{index}" for index in range(120)]
    assert all(record.ended_s >= record.arrived_s for record in records)


def test_cascade_defers_by_its_threshold() -> None:
    records = run(cascade("static-cascade", rate=20.0), poisson(20.0, 2_000))

    scored = [record for record in records if record.confidence is not None]
    threshold = max(record.confidence for record in scored if record.deferred and record.confidence is not None)
    assert all(record.deferred == (record.confidence <= threshold) for record in scored if record.confidence)
    assert sum(record.deferred for record in scored) / len(scored) == pytest.approx(threshold, abs=0.05)


def test_easy_requests_are_the_same_under_every_policy() -> None:
    workload = poisson(10.0, 200)

    one = {record.request_id: record.confidence for record in run(cascade("diffserve"), workload)}
    other = {record.request_id: record.confidence for record in run(cascade("static-cascade"), workload)}

    assert one == other


def test_overload_makes_the_cascade_answer_lightly() -> None:
    calm = share(run(cascade("diffserve", rate=4.0), poisson(4.0, 400)), "turbo")
    busy = share(run(cascade("diffserve", rate=28.0), poisson(28.0, 1_500)), "turbo")

    assert calm < 0.1
    assert busy > 0.5


def test_light_image_replaces_heavy_image_that_would_be_late() -> None:
    def violations(fall_back: bool) -> int:
        settings = DataplaneSettings(queue_limit=1_000_000, fall_back=fall_back)
        records = run(cascade("static-cascade", rate=20.0, dataplane=settings), poisson(30.0, 600))
        return sum(record.outcome.violation for record in records)

    assert violations(True) < violations(False)


def test_delays_add_up() -> None:
    delays = Delays(
        accept=steady(0.01),
        route=steady(0.02),
        attempt=steady(0.04),
        execute=steady(0.08),
        result=steady(0.16),
        commit=steady(0.32),
        answer=steady(0.64),
    )

    (record,) = run(one_model({1: 1.0}, delays=delays), arrivals([5.0]))

    assert record.latency_s == pytest.approx(1.0 + 1.27)


def test_stages_lie_within_the_request_and_follow_one_another() -> None:
    records = run(one_model({1: 1.0}, delays=Delays(route=steady(0.05))), arrivals([0.0, 0.2, 0.4]))

    for record in records:
        times = [time for stage in record.stages for time in (stage.began_s, stage.ended_s)]
        assert record.arrived_s <= times[0] and times[-1] <= record.ended_s
        assert all(before <= after for before, after in pairwise(times))


def test_requests_predicted_late_do_not_run() -> None:
    scenario = one_model({1: 1.0}, answers_late=False)

    records = run(scenario, poisson(4.0, 200, steps=10, deadline_s=3.0))

    outcomes = Counter(record.outcome for record in records)
    assert outcomes[Outcome.REJECTED] + outcomes[Outcome.DROPPED] > 100
    assert outcomes[Outcome.COMPLETED] > 40


def test_request_of_lost_worker_runs_on_another() -> None:
    scenario = one_model({1: 1.0, 2: 1.5}, count=2, outages=(Outage("w0-0", 0.5, 100.0, noticed_s=0.25),))

    records = run(scenario, arrivals([0.0, 0.0]))

    assert [record.outcome for record in records] == [Outcome.COMPLETED] * 2
    # The lost request joins the other at 0.8 for the other's last two steps, then continues without it.
    assert sorted(round(record.latency_s, 6) for record in records) == [1.1, 1.9]


@pytest.mark.parametrize(
    ("outages", "latency_s"),
    [
        pytest.param([(0.5, 4.0)], 5.5, id="one"),
        pytest.param([(0.5, 4.0), (1.0, 9.0)], 11.0, id="the-last-one-ends-later"),
        pytest.param([(0.5, 7.5), (1.0, 2.0)], 9.0, id="one-within-another"),
    ],
)
def test_worker_is_back_when_its_outages_have_ended(outages: list[tuple[float, float]], latency_s: float) -> None:
    lost = tuple(Outage("w0-0", at_s, for_s, noticed_s=0.25) for at_s, for_s in outages)

    (record,) = run(one_model({1: 1.0}, outages=lost), arrivals([0.0]))

    assert record.latency_s == pytest.approx(latency_s)


def test_policy_does_not_plan_while_every_worker_is_lost() -> None:
    """Without devices DiffServe's allocator has no capacity and would admit no request."""
    lost = tuple(Outage(f"w0-{number}", 4.0, 20.0, noticed_s=0.25) for number in range(2))
    scenario = cascade("diffserve", 2, rate=1.0, outages=lost, answers_late=True)

    records = run(scenario, poisson(1.0, 30))

    assert all(record.outcome.answered for record in records)


def switching(at_s: float) -> ServingPolicy:
    """Hold `a` on all workers at first, and `b` from `at_s` on."""

    def allocator(context: PlanInput) -> Decision:
        plan = hold_resident(context).plan
        model = "b" if context.now_s >= at_s else "a"
        assignments = tuple(replace(assignment, model=model) for assignment in plan.assignments)
        pools = tuple(replace(pool, pool=model, model=model) for pool in plan.pools)
        return Decision(replace(plan, assignments=assignments, pools=pools))

    return ServingPolicy("switching", allocator)


def test_switch_waits_for_running_requests_and_takes_a_load() -> None:
    models = tuple(SimulatedModel(from_latencies(name, 10, {1: 3.0}, load=steady(7.0))) for name in "ab")
    scenario = one_model(
        {1: 1.0},
        models=models,
        devices=(SimulatedDevices(1, "a"),),
        policy=switching(5.0),
        default_model="a",
        control_period_s=5.0,
    )
    workload = Workload("two", (*arrivals([4.0], model="a").arrivals, *arrivals([5.5], model="b").arrivals), {})

    records = run(scenario, workload)

    # One runs on `a` until 7.0; `b` is loaded at 14.0.
    assert [round(record.ended_s, 6) for record in records] == [7.0, 17.0]


@pytest.mark.parametrize(
    ("device_settings", "joined"),
    [(DeviceSettings(), True), (DeviceSettings(steps=False), False), (DeviceSettings(credit_batches=2), False)],
)
def test_allocators_know_whether_batches_are_joined_at_any_step(device_settings: DeviceSettings, joined: bool) -> None:
    told: list[bool] = []

    def allocator(context: PlanInput) -> Decision:
        told.extend(Capability.STEP_BATCHING in worker.capabilities for worker in context.workers())
        return hold_resident(context)

    run(one_model({1: 1.0}, policy=ServingPolicy("", allocator), device_settings=device_settings), arrivals([0.0]))

    assert set(told) == {joined}


def cached(policy: str, rows: list[int], capacity: int = 1_000, thinned_count: int = 0) -> list[Any]:
    """Run prompts of these rows through a cache. With a `thinned_count`, images from noise run that number of steps."""
    vectors = np.random.default_rng(0).normal(size=(max(rows) + 1, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    workload = arrivals([3.0 * index for index in range(len(rows))], steps=50)
    asked = tuple(replace(arrival, embedding_row=row) for arrival, row in zip(workload.arrivals, rows, strict=True))
    settings = ServingSettings(heavy="m", small=("s",), batch_sizes=(1,))
    options = (ThinningOption(0, thinned_count, 0.99),) if thinned_count else ()
    scenario = one_model(
        {1: 1.0},
        count=4,
        steps=50,
        policy=POLICIES[policy](settings),
        dataplane=DataplaneSettings(thinning=ThinningMode.ALWAYS if options else ThinningMode.OFF),
        models=(
            SimulatedModel(from_latencies("m", 50, {1: 1.0}), thinning=options),
            SimulatedModel(from_latencies("s", 50, {1: 0.2})),
        ),
        cache=CacheSettings(capacity, rules=images_too()),
    )
    return run(scenario, replace(workload, arrivals=asked, embeddings=vectors))


def images_too() -> Any:
    from pentimento.policies.cache_selection import SelectionRules, Threshold

    return SelectionRules(images=(Threshold(0.9, 0.6),))


@pytest.mark.parametrize(
    ("policy", "start", "step", "latency_s"),
    [
        ("nirvana-only", StartKind.LATENT, 25, 0.5),
        ("retrieval-only", StartKind.RETRIEVAL, 50, 0.0),
        ("modm", StartKind.IMAGE, 30, 0.4),
        ("vanilla", StartKind.NOISE, 0, 1.0),
    ],
)
def test_a_repeated_prompt_starts_where_the_policy_lets_it(
    policy: str, start: StartKind, step: int, latency_s: float
) -> None:
    first, again = cached(policy, [3, 3])

    assert first.start is StartKind.NOISE
    assert (again.start, again.start_step) == (start, step)
    assert again.latency_s == pytest.approx(latency_s)


@pytest.mark.parametrize(("thinned_count", "start"), [(24, StartKind.NOISE), (25, StartKind.LATENT)])
def test_latent_is_skipped_if_thinned_image_needs_fewer_steps(thinned_count: int, start: StartKind) -> None:
    # The latent leaves 25 of 50.
    assert cached("nirvana-only", [3, 3], thinned_count=thinned_count)[1].start is start


def test_hits_come_from_earlier_requests() -> None:
    records = cached("nirvana-only", [0, 1, 0, 2, 1, 0])

    assert [record.start is StartKind.LATENT for record in records] == [False, False, True, False, True, True]


def test_a_store_that_is_too_small_forgets() -> None:
    records = cached("nirvana-only", [0, 1, 2, 0], capacity=1)

    assert records[-1].start is StartKind.NOISE


def test_misses_go_to_the_large_model_and_hits_to_small_ones_when_it_is_busy() -> None:
    rows = [0, 0, 1, 2]
    records = cached("modm", rows)

    assert [record.model for record in records if record.start is StartKind.NOISE] == ["m"] * 3


def test_recorded_events_of_dataplane_can_be_replayed() -> None:
    simulation = Simulation(cascade("diffserve", rate=20.0), poisson(20.0, 300), Random(1))
    told: list[tuple[float, Any, list[Any]]] = []
    original = simulation.dataplane.on_event

    def spy(now: float, event: Any) -> list[Any]:
        effects = list(original(now, event))
        told.append((now, event, effects))
        return effects

    simulation.dataplane.on_event = spy  # type: ignore[method-assign]
    simulation.run()

    again = Dataplane(1, DataplaneSettings(queue_limit=1_000_000))
    assert [list(again.on_event(now, event)) for now, event, _ in told] == [effects for _, _, effects in told]


def test_quality_follows_the_model_and_how_easy_the_request_is() -> None:
    records = run(cascade("clipper-light"), poisson(10.0, 500))

    qualities = [record.quality for record in records if record.quality is not None]
    assert min(qualities) == pytest.approx(0.6, abs=0.01)
    assert max(qualities) == pytest.approx(1.0, abs=0.01)


def test_requests_split_by_chance_wait_while_others_idle() -> None:
    settings = DeviceSettings(steps=False, credit_batches=1_000)
    scenario = one_model({1: 1.0}, count=4, device_settings=settings)
    workload = arrivals([2.0 * turn for turn in range(50) for _ in range(4)])

    by_load = [record.latency_s for record in run(scenario, workload)]
    by_chance = [record.latency_s for record in run(replace(scenario, even_split=True), workload)]

    assert by_load == pytest.approx([1.0] * 200)
    # Four requests fall on 4 (1 - (3/4)^4) workers on average, and the others have to wait.
    assert mean(seconds > 1.5 for seconds in by_chance) == pytest.approx(81 / 256, abs=0.1)


def test_in_a_closed_loop_a_request_comes_when_another_ends() -> None:
    scenario = one_model({1: 1.0}, count=2, closed_loop=2)

    records = run(scenario, arrivals([0.0, 0.0, 0.0, 1_000.0, 2_000.0]))

    assert [record.arrived_s for record in records] == pytest.approx([0.0, 0.0, 1.0, 1.0, 2.0])
    assert [record.ended_s for record in records] == pytest.approx([1.0, 1.0, 2.0, 2.0, 3.0])


def test_requests_without_a_worker_in_any_plan_are_reported() -> None:
    """No deadline drops them: late requests still run."""
    only_heavy = (SimulatedDevices(2, "sd15", models=("sd15",)),)
    scenario = replace(cascade("clipper-light", answers_late=True), devices=only_heavy)

    with pytest.raises(FailedPrecondition, match="no plan of clipper-light gives them a worker: 2 for turbo"):
        run(scenario, arrivals([0.0, 20_000.0]))


def test_a_worker_that_comes_back_late_is_waited_for() -> None:
    lost = (Outage("w0-0", 0.0, for_s=50_000.0),)
    scenario = one_model({1: 1.0}, control_period_s=5.0, outages=lost)

    (record,) = run(scenario, arrivals([10.0]))

    assert record.ended_s == pytest.approx(50_001.0)


def test_no_arrivals_no_records() -> None:
    assert run(cascade("diffserve"), arrivals([])) == []


def test_devices_that_share_a_processor_halve_their_speed() -> None:
    alone, shared = (run(one_model({1: 1.0}, count=2, processors=count), arrivals([0.0, 0.0])) for count in (2, 1))

    assert [record.latency_s for record in alone] == pytest.approx([1.0, 1.0])
    # The first step of ten began while the other device had none.
    assert [record.latency_s for record in shared] == pytest.approx([1.9, 2.0])


def test_heterogeneous_devices_serve_together() -> None:
    devices = (SimulatedDevices(2, "m", speed=1.0), SimulatedDevices(2, "m", speed=3.0, kind="fast"))
    scenario = one_model({1: SD15[1]})

    records = run(replace(scenario, devices=devices), poisson(2.0, 300, steps=10))

    seconds = {round(record.device_s, 3) for record in records}
    assert seconds == {1.78, 0.593}
