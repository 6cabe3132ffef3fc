"""Record spans of requests and send them to an OTLP receiver; without a receiver nothing is imported or recorded.
OpenTelemetry's own variables name it, as OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317, and choose the traces.

A call of a request is a span of the process that answers it. Its stages in that process, such as queue and denoise, are
spans that are recorded when they have ended. The W3C headers `traceparent` and `tracestate` connect the processes, and
connect the suite with its callers. Spans hold no prompt, tenant or token; `trace_details` may
add the prompt.

Without a receiver an id still connects the logs of several processes about one request.
"""

import os
import random
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer


# Ids come from callers and reach log lines: this pattern rejects any that could forge a line.
ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,64}")

request_id: ContextVar[str] = ContextVar("pentimento_request_id", default="")


def current_request_id() -> str:
    """Return the id of the current request; "" outside of one."""
    return request_id.get()


def new_request_id() -> str:
    """Return 16 hex digits: unlikely to collide, not a secret."""
    return f"{random.getrandbits(64):016x}"


def accept_request_id(offered: str | bytes | None) -> str:
    if isinstance(offered, str) and ACCEPTED.fullmatch(offered):
        return offered
    return new_request_id()


TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
# A process that has not imported it has no context to pass on.
API = "opentelemetry.trace"
# The first one takes precedence.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SAMPLER, SHARE, DISABLED = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SDK_DISABLED"
SHARE_SAMPLERS = frozenset({"traceidratio", "parentbased_traceidratio"})
# For a batch of spans with all retries, also at the end of the process.
SEND_S = 5.0
NAME = "pentimento"
NANOSECONDS = 1_000_000_000
# Statuses that are no failure of the process that answers.
ENDED_WELL = frozenset({"OK", "CANCELLED"})

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Tracing:
    """Hold what a process needs to record spans. `offset_ns` added to monotonic nanoseconds gives the time of day."""

    provider: "TracerProvider"
    tracer: "Tracer"
    processor: "SpanProcessor"
    offset_ns: int
    steps: bool
    gen_ai: bool

    def at_ns(self, monotonic_s: float) -> int:
        return int(monotonic_s * NANOSECONDS) + self.offset_ns


_tracing: Tracing | None = None


def traces_are_sent(environ: Mapping[str, str]) -> bool:
    """Return whether the variables name a receiver. ValueError names a malformed one, also a share, which
    OpenTelemetry's SDK would take for 1."""
    name = next((name for name in ENDPOINTS if environ.get(name)), "")
    if not name or environ.get(DISABLED, "").strip().lower() == "true":
        return False
    if not _is_receiver(environ[name]):
        raise ValueError(f"{name} must be http://host:port or https://host:port, got {environ[name]!r}")
    share = environ.get(SHARE, "")
    if share and environ.get(SAMPLER, "").lower() in SHARE_SAMPLERS and not _is_share(share):
        raise ValueError(f"{SHARE} must be a number from 0 to 1, got {share!r}")
    return True


def _is_receiver(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname and parts.port) and parts.path in ("", "/")
    except ValueError:
        return False


def _is_share(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def start_tracing(service: str, instance_id: str, *, steps: bool = False, gen_ai: bool = False) -> Callable[[], None]:
    """Record this process's spans from now on, if the environment names a receiver; return the function that sends the
    last ones. A receiver that does not answer costs spans, never a request. ValueError for a malformed variable."""
    global _tracing
    if not traces_are_sent(os.environ):
        return lambda: None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    names = {"service.namespace": NAME, "service.name": service, "service.instance.id": instance_id}
    provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
    processor = BatchSpanProcessor(OTLPSpanExporter(timeout=SEND_S))
    provider.add_span_processor(processor)
    offset_ns = time.time_ns() - time.monotonic_ns()
    _tracing = Tracing(provider, provider.get_tracer(NAME), processor, offset_ns, steps, gen_ai)

    def stop() -> None:
        global _tracing
        _tracing = None
        provider.shutdown()

    return stop


class CallSpan:
    """Time one call of this process as a span, current in the task that opened it."""

    __slots__ = ("_span", "_token")

    def __init__(self, name: str, carried: Mapping[str, str]) -> None:
        """Begin the span of a call with the caller's headers. RuntimeError without tracing."""
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if _tracing is None:
            raise RuntimeError("start_tracing first")
        parent = TraceContextTextMapPropagator().extract(carried)
        self._span: Span = _tracing.tracer.start_span(name, parent, kind=trace.SpanKind.SERVER)
        self._token: Token[Context] = context.attach(trace.set_span_in_context(self._span))

    @property
    def trace_id(self) -> str:
        """Return the id of the trace if the span is recorded, else ""."""
        found = self._span.get_span_context()
        return f"{found.trace_id:032x}" if found.trace_flags.sampled else ""

    def end(self, code: str, name: str = "") -> None:
        """End the span with gRPC's name of the status or HTTP's number, under another name if one is given."""
        from opentelemetry import context, trace

        self._span.set_attribute("rpc.response.status_code", code)
        if name:
            self._span.update_name(name)
        if code not in ENDED_WELL and not code.startswith(("2", "3", "4")):
            self._span.set_status(trace.StatusCode.ERROR, code)
        self._span.end()
        context.detach(self._token)


def begin_call(name: str, carried: Mapping[str, str], *, begins_trace: bool) -> CallSpan | None:
    """Begin the span of a call; None without tracing, and for a call outside a trace that does not begin one."""
    if _tracing is None or not (begins_trace or TRACEPARENT in carried):
        return None
    return CallSpan(name, carried)


def record_stage(name: str, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
    """Record a stage of the current request that has ended; times are monotonic seconds."""
    if _tracing is None:
        return
    parent = _api().get_current_span().get_span_context()
    if not parent.is_valid:
        return
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext

    # A tracer's span takes six times as long, and an image may have one for each step. The processor drops spans that
    # are not sampled.
    own = _tracing.provider.id_generator.generate_span_id()
    span = ReadableSpan(
        name,
        SpanContext(parent.trace_id, own, False, parent.trace_flags, parent.trace_state),
        parent,
        _tracing.provider.resource,
        attributes,
        start_time=_tracing.at_ns(began_s),
        end_time=_tracing.at_ns(ended_s),
        instrumentation_scope=InstrumentationScope(NAME),
    )
    _tracing.processor.on_end(span)


def annotate(attributes: Attributes) -> None:
    """Add attributes to the current span, if there is one."""
    if _tracing is not None:
        _api().get_current_span().set_attributes(attributes)


def traces_steps() -> bool:
    return _tracing is not None and _tracing.steps


def traces_gen_ai() -> bool:
    return _tracing is not None and _tracing.gen_ai


def outgoing() -> tuple[tuple[str, str], ...]:
    """Return the W3C headers of the current span, of this code or of a caller that uses OpenTelemetry; empty without
    one."""
    api = _api()
    found = api.get_current_span().get_span_context() if api is not None else None
    if found is None or not found.is_valid:
        return ()
    parent = (TRACEPARENT, f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}")
    return (parent, (TRACESTATE, found.trace_state.to_header())) if found.trace_state else (parent,)


def current_ids() -> tuple[str, str]:
    """Return the ids of the current trace and span, "" without one."""
    api = _api() if _tracing is not None else None
    found = api.get_current_span().get_span_context() if api is not None else None
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found is not None and found.is_valid else ("", "")


def exemplar() -> dict[str, str] | None:
    """Return the labels of the current trace for a metric's exemplar; None without a recorded one."""
    api = _api() if _tracing is not None else None
    found = api.get_current_span().get_span_context() if api is not None else None
    return {"trace_id": f"{found.trace_id:032x}"} if found is not None and found.trace_flags.sampled else None


def _api() -> Any:
    return sys.modules.get(API)
