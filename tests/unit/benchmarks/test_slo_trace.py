"""Test `slo_trace`'s figures of known runs."""

from dataclasses import replace

import pytest

from benchmarks.slo_trace import (
    CASCADE,
    SYSTEMS,
    TraceRun,
    dominates,
    figures_of,
    scenario_of,
    static_capacity_per_s,
    trace_load,
)
from pentimento.policies.thinning import ThinningMode, ThinningOption


def runs_of(system: str, violations: float, quality: float) -> list[TraceRun]:
    return [TraceRun(system, trace, violations, quality, 1000) for trace in ("one", "two")]


def test_static_capacity_is_limited_by_heavy_devices() -> None:
    # twelve in batches of four of 3.68 s; 26 % of the requests are deferred
    assert static_capacity_per_s(CASCADE) == pytest.approx(12 * 4 / 3.68 / 0.26)


@pytest.mark.parametrize(
    ("other", "dominating"),
    [((0.1, 0.9), False), ((0.1, 0.91), True), ((0.05, 0.9), True), ((0.05, 0.89), False), ((0.2, 1.0), False)],
)
def test_dominates_requires_one_better_and_none_worse(other: tuple[float, float], dominating: bool) -> None:
    assert dominates(other, (0.1, 0.9)) is dominating


def test_figures_compare_violations_by_trace_and_name_dominating_systems() -> None:
    runs = [*runs_of("static-cascade", 0.06, 0.95), *runs_of("proteus", 0.01, 0.97), *runs_of("joint", 0.02, 0.96)]

    figures = {figure.name: figure for figure in figures_of(runs, "joint")}

    static = figures["violations of static-cascade ÷ those of joint"]
    assert static.value == pytest.approx(3.0) and static.ok
    assert not figures["violations of proteus ÷ those of joint"].ok
    assert figures["systems that dominate joint"].samples == ["proteus"]


def test_joint_thinning_counts_as_ours() -> None:
    runs = [*runs_of("joint thinning", 0.01, 0.97)]

    figures = {figure.name: figure for figure in figures_of([*runs, *runs_of("joint", 0.02, 0.96)], "joint")}

    assert figures["systems that dominate joint"].samples == []


def test_control_uses_same_data_path() -> None:
    runs = [*runs_of("diffserve falling back", 0.04, 0.9), *runs_of("joint", 0.01, 0.92)]

    figures = {figure.name: figure for figure in figures_of(runs, "joint")}

    assert figures["violations of joint − of diffserve falling back"].value == pytest.approx(-0.03)
    assert figures["quality of joint − of diffserve falling back"].value == pytest.approx(0.02)


def test_zero_violations_count_as_one_request() -> None:
    figures = figures_of([*runs_of("clipper-heavy", 0.5, 1.0), *runs_of("joint", 0.0, 0.9)], "joint")

    assert figures[0].value == pytest.approx(500.0)


def test_trace_load_ranges_from_low_to_peak() -> None:
    workload = trace_load((0.0, 1.0), 10.0, 40.0, 50.0, seed=1)

    times = [arrival.at_s for arrival in workload.arrivals]
    first = sum(at_s < 50.0 for at_s in times)
    assert 420 <= first <= 580
    assert 1_850 <= len(times) - first <= 2_150


def test_falls_back_only_in_suite_systems() -> None:
    falling = [system for system in SYSTEMS if scenario_of(system, 60.0).dataplane.fall_back]

    assert falling == ["diffserve falling back", "joint thinning", "joint"]
    assert scenario_of("diffserve falling back", 60.0).policy.name == "diffserve"


def test_thinning_control_only_adds_thinning() -> None:
    plain, control = (scenario_of(system, 60.0) for system in ("joint", "joint thinning"))

    thinned = {model.name: model.thinning for model in control.models}
    assert thinned == {"light": (), "heavy": (ThinningOption(3, 12, 0.997),)}
    assert control.dataplane == replace(plain.dataplane, thinning=ThinningMode.LOAD)
    assert replace(control, models=plain.models, dataplane=plain.dataplane) == plain
