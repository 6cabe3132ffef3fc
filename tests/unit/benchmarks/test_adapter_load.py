"""Test a request's worth, its arrival, and a fleet's throughput."""

from pathlib import Path

import pytest

from benchmarks.adapter_load import (
    DEVICES,
    LOAD,
    SDXL,
    SLOWNESS,
    STEPS,
    LoadedRequest,
    LoadedRound,
    workload_of,
    worth_s,
    write_pace,
)
from lab.emulation.pace import DevicePace, read_pace
from lab.workloads.production import Choice

PLAIN = Choice("u", "base-000", (), ())
BOTH = Choice("u", "base-000", ("lora-000", "lora-001"), ("controlnet-000", "controlnet-007"))


@pytest.fixture
def pace(tmp_path: Path) -> DevicePace:
    return write_pace(tmp_path / "pace.toml", read_pace(SDXL), [PLAIN, BOTH])


def test_pace_has_slowed_base_and_adapters_of_mix(pace: DevicePace) -> None:
    base = read_pace(SDXL)

    assert pace.encode.of(1) == pytest.approx(SLOWNESS * base.encode.of(1))
    assert {one.name for one in pace.loras} == {"lora-000", "lora-001"}
    assert {one.name for one in pace.controlnets} >= {"controlnet-000", "controlnet-007"}


def test_worth_counts_passes_patch_and_controlnet_steps(pace: DevicePace) -> None:
    more_s = pace.patch_s + 2 * STEPS * pace.controlnets[0].step.of(1)

    assert worth_s(pace, PLAIN) == pytest.approx(STEPS * (pace.encode.of(1) + pace.decode.of(1)) + pace.picture_s)
    assert worth_s(pace, BOTH) == pytest.approx(worth_s(pace, PLAIN) + more_s)


def test_workload_gaps_load_devices_equally(pace: DevicePace) -> None:
    plain, both = (workload_of([one] * 4, pace, [1.0, 2.0, 0.5, 0.5], 1) for one in (PLAIN, BOTH))

    for workload, choice in ((plain, PLAIN), (both, BOTH)):
        assert 4 * worth_s(pace, choice) / workload.duration_s == pytest.approx(LOAD * DEVICES)
    ratio = both.arrivals[0].at_s / plain.arrivals[0].at_s
    assert [b.at_s / p.at_s for b, p in zip(both.arrivals, plain.arrivals, strict=True)] == pytest.approx([ratio] * 4)
    assert both.arrivals[0].loras == BOTH.loras and plain.arrivals[0].controlnets == ()


def test_throughput_ignores_unanswered_requests() -> None:
    answered = LoadedRequest(1.0, 11.0, 8.0, "completed")
    failed = LoadedRequest(3.0, 5.0, 8.0, "failed")

    assert LoadedRound((answered, failed)).throughput == pytest.approx(8.0 / 10.0 / DEVICES)
    assert LoadedRound((answered,)).latencies_s == [10.0]
