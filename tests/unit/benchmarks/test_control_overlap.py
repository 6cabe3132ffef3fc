"""Test `controlnet_parallel`'s figures of spans."""

import pytest

from benchmarks.control_overlap import Blocks, _timed, trace_events
from lab.fixtures.spans import Span


def span(what: str, began_ms: float, length_ms: float, process_id: int = 1) -> Span:
    return Span(what, process_id, began_ms / 1e3, (began_ms + length_ms) / 1e3, 2)


WORKER = [span(what, step * 30.0 + at, 10.0) for step in range(3) for what, at in (("encode", 0.0), ("decode", 14.0))]
# The first pass reports the residuals' shapes, before the first step.
CONTROL = [span("residuals", -40.0, 90.0, 2), *(span("residuals", step * 30.0, 12.0, 2) for step in range(3))]


def test_share_of_ideal_uses_image_passes() -> None:
    image = _timed(3, 1, 0.120, WORKER, [CONTROL])

    assert image.control_s == pytest.approx(0.012)
    assert image.serial_step_s == pytest.approx(0.032)
    assert image.ideal_step_s == pytest.approx(0.022)
    assert image.steady_s == pytest.approx(0.030)
    assert image.steady_share == pytest.approx(22 / 30)
    assert image.share_of_ideal == pytest.approx(22 / 40)
    assert image.device_s == pytest.approx(0.060 + 0.126)


def test_ideal_step_uses_slowest_controlnet() -> None:
    slower = [span("residuals", step * 30.0, 15.0, 3) for step in range(3)]

    assert _timed(3, 2, 0.120, WORKER, [CONTROL, slower]).control_s == pytest.approx(0.015)


def test_transformer_ideal_uses_blocks() -> None:
    # 24 blocks of 1 s; after the last of 12 residuals, which follows block 22, comes one more
    assert Blocks(24, 12).ideal_s(24.0, 12.0) == pytest.approx(24.0)
    assert Blocks(24, 12).ideal_s(24.0, 18.0) == pytest.approx(24.5)  # the first residual half a second late
    assert Blocks(24, 12).ideal_s(24.0, 36.0) == pytest.approx(37.0)
    assert Blocks(24, 6).ideal_s(24.0, 30.0) == pytest.approx(33.0)


def test_pass_time_excludes_residual_writing() -> None:
    parts = [span("deliver", step * 30.0 + 4.0, 3.0, 2) for step in range(3)]

    assert _timed(3, 1, 0.120, WORKER, [CONTROL + parts]).control_s == pytest.approx(0.009)


def test_trace_events_start_at_first_span_and_name_processes() -> None:
    events = trace_events(_timed(3, 1, 0.120, WORKER, [CONTROL]), ["worker", "edges"])["traceEvents"]

    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["worker", "edges"]
    assert min(event["ts"] for event in events if event["ph"] == "X") == 0
    assert [event["dur"] for event in events if event.get("name") == "residuals"] == [90_000, 12_000, 12_000, 12_000]
