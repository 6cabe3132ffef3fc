"""Spans of one process: recording, the caller's headers, and a process without a receiver."""

import json
import logging
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
    traces_gen_ai,
    traces_steps,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = {TRACEPARENT: f"00-{TRACE}-{SPAN}-01"}, {TRACEPARENT: f"00-{TRACE}-{SPAN}-00"}


class Recorded:
    """Record spans in this process until `spans` returns them."""

    def __init__(self, receiver: SpanReceiver, **options: object) -> None:
        self._receiver = receiver
        self._stop = start_tracing("frontdoor", "frontdoor-1", receiver.address, **options)  # type: ignore[arg-type]

    def spans(self) -> list[ReceivedSpan]:
        self._stop()
        return self._receiver.spans()


@pytest.fixture
def receiver() -> Iterator[SpanReceiver]:
    with span_receiver() as opened:
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


def test_share_of_zero_records_no_trace_that_begins_here(receiver: SpanReceiver) -> None:
    process = Recorded(receiver, share=0.0)
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


def test_process_without_a_receiver_imports_nothing_of_it() -> None:
    program = (
        "import sys; from pentimento.telemetry.tracing import *; stop = start_tracing('a', 'b', ''); "
        "assert begin_call('x', {'traceparent': 'y'}, begins_trace=True) is None; assert outgoing() == (); stop(); "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_silent_receiver_does_not_delay_process_end() -> None:
    stop = start_tracing("frontdoor", "frontdoor-1", "http://127.0.0.1:1")
    call = begin_call("Service/Generate", {}, begins_trace=True)
    assert call is not None
    call.end("OK")
    stop()
    assert begin_call("Service/Generate", {}, begins_trace=True) is None
