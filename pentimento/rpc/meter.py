"""Count the calls of a process, by method and status code.

    pentimento_rpc_requests_total{method, code}   calls answered
    pentimento_rpc_latency_seconds{method}        from a call's arrival to its last answer
    pentimento_rpc_in_flight_count{method}        calls being served

Every call writes them, only from the event loop, so they are plain numbers: prometheus_client's own metrics take a lock
for each change, which cost more than all other work of the kit for a call. A read converts them to metrics.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from pentimento.telemetry.metrics import LATENCY_BUCKETS_S


class MethodMeter:
    """Count the calls of one method."""

    __slots__ = ("by_bucket", "by_code", "examples", "in_flight_count", "method", "seconds")

    def __init__(self, method: str) -> None:
        self.method = method
        self.in_flight_count = 0
        self.seconds = 0.0
        self.by_code: dict[str, int] = defaultdict(int)
        self.by_bucket = [0] * (len(LATENCY_BUCKETS_S) + 1)
        # The last traced call of each bucket.
        self.examples: dict[int, Exemplar] = {}

    def begin(self) -> None:
        self.in_flight_count += 1

    def end(self, code: str, seconds: float, trace_id: str = "") -> None:
        self.in_flight_count -= 1
        self.by_code[code] += 1
        self.seconds += seconds
        bucket = bisect_left(LATENCY_BUCKETS_S, seconds)
        self.by_bucket[bucket] += 1
        if trace_id:
            self.examples[bucket] = Exemplar({"trace_id": trace_id}, seconds, time.time())


class CallCollector(Collector):
    """Convert the meters to metrics on request, from any thread."""

    def __init__(self) -> None:
        self._meters: dict[str, MethodMeter] = {}

    def meter(self, method: str) -> MethodMeter:
        """Return the meter of a method; all servers of a process share it."""
        return self._meters.setdefault(method, MethodMeter(method))

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "pentimento_rpc_requests", "Answered calls by method and status code.", labels=("method", "code")
        )
        latency = HistogramMetricFamily(
            "pentimento_rpc_latency_seconds", "Time from a call's arrival to its last answer.", labels=("method",)
        )
        in_flight = GaugeMetricFamily("pentimento_rpc_in_flight_count", "Running calls.", labels=("method",))
        for meter in tuple(self._meters.values()):
            for code, count in tuple(meter.by_code.items()):
                requests.add_metric((meter.method, code), count)
            latency.add_metric((meter.method,), cumulative(meter.by_bucket, meter.examples), meter.seconds)
            in_flight.add_metric((meter.method,), meter.in_flight_count)
        yield from (requests, latency, in_flight)


def cumulative(by_bucket: list[int], examples: Mapping[int, Exemplar]) -> list[Any]:
    """Return cumulative buckets, those with an example also with it: Prometheus counts each with all below it."""
    bounds = (*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf")
    counts = enumerate(zip(bounds, accumulate(by_bucket), strict=True))
    return [(*bucket, examples[index]) if index in examples else bucket for index, bucket in counts]


CALLS = CallCollector()
REGISTRY.register(CALLS)
