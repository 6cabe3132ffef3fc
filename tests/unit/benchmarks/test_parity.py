"""Test the pure parts of `parity`, without a suite."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.emulated_runs import FLEETS, capacity_per_s, steady_load
from benchmarks.parity import SIMULATIONS, Side, Turn, pair, rate_and_slo, scenario_of, share_deferred
from benchmarks.parity_figures import (
    DIAGNOSED,
    PREDICTED,
    Tally,
    figures,
    interval,
    latencies_apart,
    p50_of,
    violations_apart,
)
from benchmarks.report import at_most
from benchmarks.seen_delays import delays_of
from lab.emulation.fleet_file import read_fleet
from lab.runs import Outcome, RequestRecord, StageSpan
from lab.simulator import Simulation
from lab.simulator.scenario import Delays


def heavy_side() -> Side:
    return Side("heavy-16", lambda: None, FLEETS / "heavy-16.toml", "sd15", 50)


def record(**changes: object) -> RequestRecord:
    stages = (
        StageSpan("accept", 10.0, 10.5),
        StageSpan("route", 10.5, 10.75),
        StageSpan("queue", 10.75, 12.0),
        StageSpan("attempt", 12.0, 12.125),
        StageSpan("send", 12.125, 12.25),
        StageSpan("worker.start", 12.25, 12.25),
        StageSpan("worker.queue", 12.25, 13.0),
        StageSpan("worker.decode", 14.0, 14.5),
        StageSpan("receive", 14.5, 14.75),
    )
    values = {
        "request_id": "r",
        "tenant": "t",
        "slo_class": "standard",
        "pool": "sd15",
        "arrived_s": 10.0,
        "deadline_s": 10.0,
        "ended_s": 15.5,
        "outcome": Outcome.COMPLETED,
        "stages": stages,
    }
    return RequestRecord(**(values | changes))  # type: ignore[arg-type]


def test_delays_exclude_queues_and_devices() -> None:
    delays = delays_of([record(), record()], Delays())

    found = [delays.accept, delays.route, delays.attempt, delays.execute, delays.result, delays.answer]
    assert [cost.mean_s for cost in found] == pytest.approx([0.5, 0.25, 0.125, 0.125, 0.25, 0.75])


def test_delays_skip_requests_without_stages() -> None:
    others = [record(outcome=Outcome.DROPPED), record(deferred=True), record(stages=())]

    assert delays_of([*others, record()], Delays()).answer.sample_count == 1
    with pytest.raises(RuntimeError, match="answered no request"):
        delays_of(others, Delays())


@pytest.mark.parametrize(("threshold", "share"), [(0.0, 0.0), (0.25, 0.1), (0.5, 0.2), (0.75, 0.6), (1.0, 1.0)])
def test_share_deferred_interpolates_curve(threshold: float, share: float) -> None:
    assert share_deferred(((0.0, 0.0), (0.5, 0.2), (1.0, 1.0)), threshold) == pytest.approx(share)


def test_capacity_assumes_full_batches() -> None:
    fleet = read_fleet(FLEETS / "heavy-16.toml")

    assert capacity_per_s(fleet, "sd15") == pytest.approx(16 * 4 / 3.68)
    assert rate_and_slo(heavy_side()) == pytest.approx((16 * 4 / 3.68, 2 * 3.68))


def test_simulated_run_matches_another_seed(tmp_path: Path) -> None:
    side = heavy_side()
    scenario = scenario_of(side, tmp_path)
    rate, slo_s = rate_and_slo(side)
    workload = steady_load(1.3 * rate, 20.0, slo_s, seed=5)
    stand_in = Simulation(scenario, workload, Random(99)).run()

    found = pair(side.name, [Turn(1.3, 1.3 * rate, workload, scenario, stand_in)])

    assert len(found.simulated) == SIMULATIONS
    assert found.live.overall.violations > 0
    assert found.violations_points < 3.0
    assert found.percent(p50_of) < 5.0
    assert found.quality_percent is not None
    assert all(figure.value is not None for figure in figures([found]))


def tally(violations: int, *latencies_s: float) -> Tally:
    return Tally(violations, 10, np.array(latencies_s))


# A load played in two rounds: each live, and simulated once.
ROUNDS = [(tally(1, 1.0), tally(2, 1.25)), (tally(3, 3.0), tally(3, 3.75))]


def test_compared_load_covers_all_rounds() -> None:
    assert violations_apart(ROUNDS) == pytest.approx(100 * (5 - 4) / 20)
    assert latencies_apart(50, ROUNDS) == pytest.approx(25.0)


def test_interval_resamples_rounds() -> None:
    found = interval([ROUNDS], lambda loads: violations_apart(loads[0]))

    # The first round is 10 points apart, the second 0.
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.0, 10.0))


def test_interval_of_one_round_is_none() -> None:
    assert interval([ROUNDS[:1]], lambda loads: violations_apart(loads[0])) is None


def test_diagnosis_has_no_target(tmp_path: Path) -> None:
    scenario = scenario_of(heavy_side(), tmp_path)
    workload = steady_load(20.0, 2.0, 7.0, seed=5)
    turns = [Turn(1.3, 20.0, workload, scenario, Simulation(scenario, workload, Random(99)).run())]

    predicted, told = (figures([pair(f"real, {kind}", turns)]) for kind in (PREDICTED, DIAGNOSED))

    assert predicted[0].target == at_most(1.1, "points")
    assert {one.target.limit for one in told} == {None}


def test_discriminator_time_is_separate_delay() -> None:
    scored = record(stages=(*record().stages, StageSpan("score", 14.75, 15.0)))

    delays = delays_of([scored], Delays())

    assert (delays.score.mean_s, delays.answer.mean_s) == pytest.approx((0.25, 0.5))
