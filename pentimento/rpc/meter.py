"""Counts of the calls a process serves: `pentimento_rpc_*`, by method and status code."""

from dataclasses import dataclass, field

from prometheus_client import Counter

from pentimento.telemetry import counter, gauge, histogram

CALLS = counter("pentimento_rpc_requests_total", "calls answered", ("method", "code"))
LATENCY = histogram("pentimento_rpc_latency_seconds", "from the call's arrival to its last answer", ("method",))
IN_FLIGHT = gauge("pentimento_rpc_in_flight_count", "calls being served", ("method",))


@dataclass
class MethodMeter:
    """The metrics of one method, looked up once."""

    method: str
    by_code: dict[str, Counter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._latency = LATENCY.labels(self.method)
        self._in_flight = IN_FLIGHT.labels(self.method)

    def begin(self) -> None:
        self._in_flight.inc()

    def end(self, code: str, seconds: float) -> None:
        self._in_flight.dec()
        self._latency.observe(seconds)
        known = self.by_code.get(code)
        if known is None:
            known = self.by_code[code] = CALLS.labels(self.method, code)
        known.inc()
