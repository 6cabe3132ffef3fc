"""Compute how many replicas a pool of workers or a service needs.

    count = needed_workers(context, ("heavy",), slo_s=5.0, arrivals=arrivals, waiting={"heavy": 3}, start_s=60.0)
    dwell = DwellWindow(dwell_s=120.0)
    wanted = dwell.update(now_s, count)        # rises at once, falls after the dwell

Workers: the rate at which the recent requests would all have begun within their SLO, and by Erlang's delay formula
(M/M/c) the least number with which at most LATE_SHARE of such requests wait longer; a batch of size b on one device
counts as b servers. The queue absorbs a burst that is shorter than the allowed wait, so no average has to follow it.
Small fleets get more spare capacity than large ones, which a target of utilisation cannot do. Other services: their
running calls over the calls of one replica.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from pentimento.domain.errors import FailedPrecondition
from pentimento.policies.plan.costs import BatchCost, batch_costs
from pentimento.policies.plan.demand import averaged_demand, demand_of
from pentimento.policies.plan.inputs import ModelDemand, PlanInput

# Share of the requests that may wait longer than the SLO allows.
LATE_SHARE = 0.01
# A batch may take this share of the SLO, the rest is for the wait.
RUN_SHARE = 0.5
# Waiting requests are to be served within the allowed wait after a worker's start, and at the earliest within this
# time.
LEAST_DRAIN_S = 5.0
# Seconds of arrivals that count, and the least seconds that are counted apart. Chosen on the traces of
# `benchmarks.autoscale_sim`.
RECENT_S, SPAN_S = 300.0, 5.0
# Weight of the newest second in the averages of calls, which so cover about ten seconds. A smaller average than
# LEAST_AVERAGE is 0.
NEWEST_WEIGHT, LEAST_AVERAGE = 0.1, 1.0 / 120.0
# Above this no more servers are counted; the controller's limit of replicas is far below.
MOST_SERVERS = 100_000


def least_servers(erlangs: float, slack_runs: float) -> int:
    """Return the least servers at which at most LATE_SHARE of the requests wait longer than `slack_runs` service times.

    `erlangs`: arrivals a second times seconds of service. Source: Erlang C by Erlang B's recursion.
    """
    blocked = 1.0
    for servers in range(1, MOST_SERVERS):
        blocked = erlangs * blocked / (servers + erlangs * blocked)
        if servers <= erlangs:
            continue
        delayed = servers * blocked / (servers - erlangs * (1.0 - blocked))
        if delayed * math.exp((erlangs - servers) * slack_runs) <= LATE_SHARE:
            return servers
    return MOST_SERVERS


class RecentArrivals:
    """Remember how many requests came in the last RECENT_S seconds, by model."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        # Seconds that are known, at most RECENT_S.
        self._known_s = 0.0
        # Seconds and requests, the newest first.
        self._spans: dict[str, deque[tuple[float, float]]] = {}

    def update(self, now_s: float, per_s: Mapping[str, float]) -> None:
        """Add the arrivals a second since the last call; a missing model had none. Changes state. The first call only
        begins: the seconds that its rates are of are unknown."""
        elapsed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s, self._known_s = now_s, min(self._known_s + elapsed_s, RECENT_S)
        for model in {*self._spans, *per_s}:
            spans = self._spans.setdefault(model, deque())
            open_s, open_count = spans.popleft() if spans and spans[0][0] < SPAN_S else (0.0, 0.0)
            spans.appendleft((open_s + elapsed_s, open_count + per_s.get(model, 0.0) * elapsed_s))
            while len(spans) > 1 and sum(seconds for seconds, _ in spans) > RECENT_S:
                spans.pop()
            if not any(count for _, count in spans):
                del self._spans[model]

    def rate(self, model: str, slack_s: float) -> float:
        """Return the least requests a second that must be served, so that none of the newest would have waited longer
        than `slack_s`, and no less than came on average; 0 without requests.

        In order of arrival the newest request waits at most `slack_s` if each span up to now had at most rate x (span +
        slack) arrivals (Cruz's bound of 1991).
        """
        span_s = count = most = 0.0
        for seconds, arrivals in self._spans.get(model, ()):
            span_s, count = span_s + seconds, count + arrivals
            most = max(most, count / (span_s + slack_s))
        return max(most, count / self._known_s) if count else 0.0


def needed_workers(
    context: PlanInput,
    models: Iterable[str],
    slo_s: float,
    arrivals: RecentArrivals,
    waiting: Mapping[str, int],
    start_s: float = 0.0,
) -> int:
    """Return the workers that the models need together. `waiting`: requests that wait now, by model; `start_s`: seconds
    until a new worker serves.

    A model without requests needs none. One without a profile needs a worker, which measures it.
    """
    return sum(_workers_of(context, model, slo_s, arrivals, waiting.get(model, 0), start_s) for model in models)


def _workers_of(
    context: PlanInput, model: str, slo_s: float, arrivals: RecentArrivals, waiting_count: int, start_s: float
) -> int:
    if not waiting_count and not arrivals.rate(model, SPAN_S):
        return 0
    try:
        costs = batch_costs(context, model, saved_share=saved_share(demand_of(context, model)))
    except FailedPrecondition:
        return 1
    cost = _full_batch(costs, slo_s)
    slack_s = max(slo_s - cost.latency_s, cost.latency_s) if math.isfinite(slo_s) else cost.latency_s
    servers = waiting_count * cost.latency_s / (max(slack_s, LEAST_DRAIN_S) + start_s)
    if rate := arrivals.rate(model, slack_s):
        servers += least_servers(rate * cost.latency_s, slack_s / cost.latency_s)
    return math.ceil(servers / cost.batch_size)


def _full_batch(costs: Iterable[BatchCost], slo_s: float) -> BatchCost:
    """Return the batch with the highest throughput that takes at most RUN_SHARE of the SLO; the quickest if none
    does."""
    costs = tuple(costs)
    fitting = [cost for cost in costs if cost.latency_s <= RUN_SHARE * slo_s]
    return max(fitting, key=lambda cost: cost.throughput) if fitting else min(costs, key=lambda cost: cost.latency_s)


def saved_share(demand: ModelDemand) -> float:
    """Return the share (0..1) of the steps that starts from the cache save; requests of unknown length count as
    whole."""
    counted = [start for start in demand.starts if start.step_count]
    run = sum(start.request_count * start.step_count for start in counted)
    saved = sum(start.request_count * min(start.start_step, start.step_count) for start in counted)
    requests = sum(start.request_count for start in demand.starts)
    known = sum(start.request_count for start in counted)
    return min(saved / run * known / requests, 0.99) if run and requests else 0.0


def needed_for_calls(calls: float, calls_of_a_replica: float) -> int:
    """Return the replicas for that number of running calls."""
    # An average that falls towards a whole number never reaches it.
    return math.ceil(calls / calls_of_a_replica - 0.01) if calls > 0.0 else 0


class Averages:
    """Smooth values by name."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._values: dict[str, float] = {}

    def update(self, now_s: float, newest: Mapping[str, float]) -> None:
        """Add the values since the last call; a missing one is 0. Changes state."""
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        for name in {*self._values, *newest}:
            before = self._values.get(name, 0.0)
            after = averaged_demand(newest.get(name, 0.0), before, NEWEST_WEIGHT, elapsed_s)
            self._values[name] = after if after >= LEAST_AVERAGE else 0.0

    def value(self, name: str) -> float:
        """Return the average, 0 without any."""
        return self._values.get(name, 0.0)


class DwellWindow:
    """Let a count of replicas rise at once, and fall to the most that was needed in the last `dwell_s` seconds."""

    def __init__(self, dwell_s: float, now_s: float, count: int) -> None:
        """Begin with the count that runs: the need before is unknown."""
        self.dwell_s = dwell_s
        self._held_s = -math.inf
        self._needed: deque[tuple[float, int]] = deque([(now_s, count)])

    @property
    def wanted(self) -> int:
        """Return the count of the last update."""
        return self._needed[0][1]

    def update(self, now_s: float, needed: int) -> int:
        """Return the count that is wanted now. Changes state."""
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now_s, needed))
        while self._needed[0][0] < now_s - self.dwell_s:
            self._needed.popleft()
        return self.wanted

    def hold(self, now_s: float) -> None:
        """Keep the count for another dwell, since the plan has just moved models: the demand that follows is not known
        yet. Changes state. A call within that dwell has no effect: a plan that moves models often would keep the count
        for ever."""
        if now_s - self._held_s > self.dwell_s:
            self._held_s = now_s
            self.update(now_s, self.wanted)
