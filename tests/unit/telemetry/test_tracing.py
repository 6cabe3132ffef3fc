"""Spans of one process: recording, the caller's headers, and a process without a receiver."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lab.fixtures.otlp_receiver import ReceivedSpan, SpanReceiver, span_receiver
from pentimento.telemetry.logs import JsonFormatter
from pentimento.telemetry.tracing import (
    TRACEPARENT,
    annotate,
    begin_call,
    current_ids,
    outgoing,
    record_stage,
    start_tracing,
    traces_are_sent,
    traces_gen_ai,
    traces_steps,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
SAMPLER, SHARE = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
SAMPLED, UNSAMPLED = {TRACEPARENT: f"00-{TRACE}-{SPAN}-01"}, {TRACEPARENT: f"00-{TRACE}-{SPAN}-00"}


class Recorded:
    """Record spans in this process until `spans` returns them."""

    def __init__(self, receiver: SpanReceiver, **options: object) -> None:
        self._receiver = receiver
        self._stop = start_tracing("frontdoor", "frontdoor-1", **options)  # type: ignore[arg-type]

    def spans(self) -> list[ReceivedSpan]:
        self._stop()
        return self._receiver.spans()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanReceiver]:
    with span_receiver() as opened:
        monkeypatch.setenv(ENDPOINT, opened.address)
        yield opened


@pytest.fixture
def recorded(receiver: SpanReceiver) -> Iterator[Recorded]:
    process = Recorded(receiver)
    yield process
    process.spans()


def test_call_continues_the_trace_of_its_caller(recorded: Recorded) -> None:
    call = begin_call("Service/Method", SAMPLED, begins_trace=False)
    assert call is not None
    assert call.trace_id == TRACE
    call.end("OK")

    (span,) = recorded.spans()
    assert (span.service, span.instance, span.name) == ("frontdoor", "frontdoor-1", "Service/Method")
    assert (span.trace_id, span.parent_id, span.failed) == (TRACE, SPAN, False)
    assert span.attributes["rpc.response.status_code"] == "OK"


def test_call_outside_a_trace_has_a_span_only_where_it_begins_one(recorded: Recorded) -> None:
    assert begin_call("Service/Report", {}, begins_trace=False) is None
    call = begin_call("Service/Generate", {}, begins_trace=True)
    assert call is not None
    call.end("OK")

    (span,) = recorded.spans()
    assert (span.name, span.parent_id) == ("Service/Generate", "")


@pytest.mark.parametrize(
    ("code", "failed"), [("OK", False), ("CANCELLED", False), ("UNAVAILABLE", True), ("404", False), ("503", True)]
)
def test_status_of_a_call_says_whether_its_span_failed(recorded: Recorded, code: str, failed: bool) -> None:
    call = begin_call("Service/Method", SAMPLED, begins_trace=False)
    assert call is not None
    call.end(code, "another name")

    (span,) = recorded.spans()
    assert (span.name, span.failed) == ("another name", failed)


def test_caller_without_recording_decides_for_its_calls(recorded: Recorded) -> None:
    call = begin_call("Service/Method", UNSAMPLED, begins_trace=True)
    assert call is not None
    record_stage("queue", 1.0, 2.0)
    assert call.trace_id == ""
    assert outgoing()[0][1].endswith("-00")
    call.end("OK")

    assert recorded.spans() == []


def test_share_of_zero_records_no_trace_that_begins_here(
    receiver: SpanReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SAMPLER, "parentbased_traceidratio")
    monkeypatch.setenv(SHARE, "0")
    process = Recorded(receiver)
    for carried in ({}, SAMPLED):
        call = begin_call("Service/Generate", carried, begins_trace=True)
        assert call is not None
        call.end("OK")

    assert [span.trace_id for span in process.spans()] == [TRACE]


def test_stage_lies_in_its_call_and_at_its_own_time(recorded: Recorded) -> None:
    call = begin_call("Service/Generate", {}, begins_trace=True)
    assert call is not None
    now, today = time.monotonic(), time.time()
    record_stage("queue", now - 3.0, now - 1.0, {"pentimento.step": 4})
    annotate({"pentimento.request_id": "r-1"})
    call.end("OK")

    stage, generate = recorded.spans()
    assert (stage.name, stage.parent_id, stage.attributes) == ("queue", generate.span_id, {"pentimento.step": 4})
    assert stage.ended_ns - stage.began_ns == pytest.approx(2e9, abs=1000)
    assert stage.began_ns / 1e9 == pytest.approx(today - 3.0, abs=0.5)
    assert generate.attributes["pentimento.request_id"] == "r-1"


def test_stage_outside_a_call_is_not_recorded(recorded: Recorded) -> None:
    record_stage("queue", 1.0, 2.0)

    assert recorded.spans() == []


def test_outgoing_headers_name_the_current_span(recorded: Recorded) -> None:
    assert outgoing() == ()
    call = begin_call("Service/Method", {**SAMPLED, "tracestate": "vendor=1"}, begins_trace=False)
    assert call is not None
    parent, state = outgoing()
    call.end("OK")

    (span,) = recorded.spans()
    assert parent == (TRACEPARENT, f"00-{TRACE}-{span.span_id}-01")
    assert state == ("tracestate", "vendor=1")
    assert outgoing() == ()


def test_malformed_header_begins_new_trace(recorded: Recorded) -> None:
    call = begin_call("Service/Method", {TRACEPARENT: "00-zz-1-01"}, begins_trace=False)
    assert call is not None
    call.end("OK")

    (span,) = recorded.spans()
    assert span.parent_id == ""


def test_json_log_names_trace_and_span(recorded: Recorded) -> None:
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "routed", None, None)
    formatter = JsonFormatter("frontdoor", "frontdoor-1")
    assert "trace_id" not in json.loads(formatter.format(record))
    call = begin_call("Service/Method", SAMPLED, begins_trace=False)
    assert call is not None
    entry = json.loads(formatter.format(record))
    assert (entry["trace_id"], entry["span_id"]) == current_ids()
    assert re.fullmatch(r"[0-9a-f]{16}", entry["span_id"])
    call.end("OK")


def test_details_are_recorded_only_where_chosen(receiver: SpanReceiver) -> None:
    process = Recorded(receiver, steps=True, gen_ai=True)
    assert traces_steps()
    assert traces_gen_ai()
    process.spans()
    assert not traces_steps()
    assert not traces_gen_ai()


@pytest.mark.parametrize(
    "variables", [{}, {ENDPOINT: ""}, {ENDPOINT: "http://collector:4317", "OTEL_SDK_DISABLED": "True"}]
)
def test_process_without_a_receiver_imports_nothing_of_it(variables: dict[str, str]) -> None:
    program = (
        "import sys; from pentimento.telemetry.tracing import *; stop = start_tracing('a', 'b'); "
        "assert begin_call('x', {'traceparent': 'y'}, begins_trace=True) is None; assert outgoing() == (); stop(); "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **variables})


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4317"}, True),
        ({TRACES_ENDPOINT: "https://[::1]:4317/", ENDPOINT: "malformed"}, True),
        ({ENDPOINT: "malformed", "OTEL_SDK_DISABLED": "true"}, False),
        # Other samplers give their argument another meaning.
        ({ENDPOINT: "http://collector:4317", SAMPLER: "always_on", SHARE: "endpoint=http://jaeger"}, True),
        ({ENDPOINT: "http://collector:4317", SAMPLER: "traceidratio", SHARE: ""}, True),
        ({ENDPOINT: "http://collector:4317", SAMPLER: "Parentbased_TraceIdRatio", SHARE: "1.0"}, True),
    ],
)
def test_variables_of_opentelemetry_turn_tracing_on(variables: dict[str, str], sent: bool) -> None:
    assert traces_are_sent(variables) is sent


@pytest.mark.parametrize(
    "url", ["collector:4317", "ftp://collector:4317", "http://collector", "http://", "http://x:65536", "http://x:1/v1"]
)
def test_endpoint_that_is_no_address_is_rejected(url: str) -> None:
    for name in (ENDPOINT, TRACES_ENDPOINT):
        with pytest.raises(ValueError, match=f"^{name} must be http://host:port or https://host:port, got '{url}'$"):
            traces_are_sent({name: url})


@pytest.mark.parametrize("share", ["1.5", "-0.1", "nan", "half"])
@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_share_that_is_no_share_is_rejected(sampler: str, share: str) -> None:
    with pytest.raises(ValueError, match=f"^{SHARE} must be a number from 0 to 1, got '{share}'$"):
        traces_are_sent({ENDPOINT: "http://collector:4317", SAMPLER: sampler, SHARE: share})


def test_silent_receiver_does_not_delay_process_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    stop = start_tracing("frontdoor", "frontdoor-1")
    call = begin_call("Service/Generate", {}, begins_trace=True)
    assert call is not None
    call.end("OK")
    stop()
    assert begin_call("Service/Generate", {}, begins_trace=True) is None
