"""Limit the calls that run together, and the rate at which the calls of one tenant begin.

gRPC delivers calls in arrival order, regardless of tenant. To take a call costs a quarter of the rest (reading its
message, the answer, the end), and the rest can wait. So a tenant's calls beyond a rate begin later, in their order.
Callers after a storm wait until it is taken, not until it is served. A call with a cancelled caller gives its turn to
the next one. One event loop; no locks.

Calls are counted by method and status code:

    pentimento_rpc_requests_total{method, code}   calls answered
    pentimento_rpc_latency_seconds{method}        from a call's arrival to its last answer
    pentimento_rpc_in_flight_count{method}        calls being served

Every call writes them, only from the event loop, so they are plain numbers: prometheus_client's own metrics take a lock
for each change, which cost more than all other work of the kit for a call. A read converts them to metrics.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from pentimento.rpc.context import EDGE_AGENT
from pentimento.rpc.errors import too_many_calls
from pentimento.telemetry.metrics import LATENCY_BUCKETS_S


class Seats:
    """Count one seat for each admitted call, by key."""

    def __init__(self, limit: int, share: int) -> None:
        self._limit = limit
        self._share = share
        self._taken_count = 0
        self._by_key: Counter[str] = Counter()

    def has_room(self, key: str) -> bool:
        """Return whether `take` would succeed."""
        return self._taken_count < self._limit and self._by_key[key] < self._share

    def take(self, key: str) -> None:
        """Take a seat, which `leave` gives back. ResourceExhausted if all are taken, or all of this key."""
        if self._taken_count >= self._limit:
            raise too_many_calls(f"this server already serves max_concurrent_calls = {self._limit} calls")
        if self._by_key[key] >= self._share:
            message = f"this server already serves {self._share} calls of this tenant or peer, as many as one may have"
            raise too_many_calls(message)
        self._taken_count += 1
        self._by_key[key] += 1

    def leave(self, key: str) -> None:
        self._taken_count -= 1
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]


# Edges that are counted, and the seconds that an edge counts after its last call.
MOST_EDGES, EDGE_SEEN_S = 256, 60.0


class EdgeCalls:
    """Count the edges that call this server, and their running calls. Clients name themselves: a client that claims to
    be an edge changes the number of edges that an autoscaler receives, and nothing else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.running_count = 0
        # Seconds of the newest call's begin, by the edge's user agent.
        self._seen_s: dict[str, float] = {}

    def begin(self, agent: object, at_end: Callable[[Callable[[str], None]], None]) -> None:
        """Count a call with that user agent, if it is an edge's; `at_end` receives what ends it. Changes state."""
        if not isinstance(agent, str) or not agent.startswith(EDGE_AGENT):
            return
        if agent in self._seen_s or self.count < MOST_EDGES:
            self._seen_s[agent] = self._clock()
        self.running_count += 1
        at_end(self._end)

    @property
    def count(self) -> int:
        """Return the number of edges that have called recently."""
        oldest_s = self._clock() - EDGE_SEEN_S
        self._seen_s = {agent: seen_s for agent, seen_s in self._seen_s.items() if seen_s >= oldest_s}
        return len(self._seen_s)

    def _end(self, _: str) -> None:
        self.running_count -= 1


# Calls of one key that begin immediately, at any rate.
BURST_CALLS = 32
# Waiting calls of all keys together, and of one; each holds as much as a call that waits in gRPC.
WAITING_CALLS = 4096
WAITING_CALLS_OF_A_KEY = 2048
# Above this number of keys, keys past their bursts are deleted.
_KEPT_KEYS = 1024

CallLater = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


def _call_later(delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, act)


@dataclass(eq=False)
class _Line:
    """Hold the waiting calls of one key, in order, and the timer of the next one."""

    timer: asyncio.TimerHandle
    calls: "OrderedDict[asyncio.Future[None], None]" = field(default_factory=OrderedDict)


class CallShaper:
    """Limit the calls a second that begin for each key: a tenant, or the peer of a call that was not admitted."""

    def __init__(
        self,
        calls_per_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        call_later: CallLater = _call_later,
    ) -> None:
        self._step_s = 1.0 / calls_per_s
        self._monotonic = monotonic
        self._call_later = call_later
        # The time at which a key's next call begins if its burst is used up (GCRA's theoretical arrival time).
        self._due_at: dict[str, float] = {}
        self._lines: dict[str, _Line] = {}
        self._waiting_count = 0
        self._closed = False

    def close(self) -> None:
        """Let all waiting calls begin, and no call wait from now on: a stopping server rejects them."""
        self._closed = True
        lines, self._lines, self._waiting_count = self._lines, {}, 0
        for line in lines.values():
            line.timer.cancel()
            turns = tuple(line.calls)
            line.calls.clear()
            for turn in turns:
                if not turn.done():
                    turn.set_result(None)

    async def begin(self, key: str) -> None:
        """Wait until the call may begin. Raises ResourceExhausted if too many wait already, in total or for the key,
        with the time until those have begun."""
        if self._closed:
            return
        line = self._lines.get(key)
        if line is None:
            now = self._monotonic()
            earliest = now - (BURST_CALLS - 1) * self._step_s
            due_at = max(self._due_at.get(key, earliest), earliest)
            if due_at <= now:
                self._begun(key, due_at, now)
                return
        self._check_room(line)
        if line is None:
            line = self._lines[key] = _Line(self._call_later(due_at - now, lambda: self._let_in(key)))
        await self._wait_in(line, key)

    async def _wait_in(self, line: _Line, key: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        line.calls[turn] = None
        self._waiting_count += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn in line.calls:
                self._leave(line, turn, key)
            raise

    def _check_room(self, line: _Line | None) -> None:
        of_key = 0 if line is None else len(line.calls)
        if of_key >= WAITING_CALLS_OF_A_KEY:
            message = f"{of_key} calls of this tenant or peer wait already to begin: they come faster than"
            raise too_many_calls(f"{message} tenant_calls_per_s", of_key * self._step_s)
        if self._waiting_count >= WAITING_CALLS:
            message = (
                f"{WAITING_CALLS} calls wait already to begin, this tenant's or peer's faster than tenant_calls_per_s"
            )
            raise too_many_calls(message)

    def _leave(self, line: _Line, turn: "asyncio.Future[None]", key: str) -> None:
        del line.calls[turn]
        self._waiting_count -= 1
        if not line.calls:
            line.timer.cancel()
            del self._lines[key]

    def _let_in(self, key: str) -> None:
        """Begin the calls that are due: several if the event loop was late."""
        line, now = self._lines[key], self._monotonic()
        while line.calls and (due_at := self._due_at[key]) <= now:
            turn = next(iter(line.calls))
            self._leave(line, turn, key)
            if not turn.done():
                self._begun(key, due_at, now)
                turn.set_result(None)
        if line.calls:
            line.timer = self._call_later(due_at - now, lambda: self._let_in(key))

    def _begun(self, key: str, due_at: float, now: float) -> None:
        self._due_at[key] = due_at + self._step_s
        if len(self._due_at) > _KEPT_KEYS:
            self._due_at = {key: due for key, due in self._due_at.items() if due > now or key in self._lines}


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
