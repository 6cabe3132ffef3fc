"""Compute how many replicas a pool of workers or a service needs.

    count = needed_workers(context, ("heavy",), slo_s=5.0, waiting={"heavy": 3})
    dwell = DwellWindow(dwell_s=120.0)
    wanted = dwell.update(now_s, count)        # rises at once, falls after the dwell

Workers: the least number with which at most LATE_SHARE of the requests wait longer than their SLO allows, by Erlang's
delay formula (M/M/c): a batch of size b on one device counts as b servers. Small fleets so get more spare capacity than
large ones, which a target of utilisation cannot do. Other services: their running calls over the calls of one replica.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pentimento.domain.errors import FailedPrecondition
from pentimento.policies.plan.costs import BatchCost, batch_costs
from pentimento.policies.plan.demand import RateTrend, demand_of, settled_weight
from pentimento.policies.plan.inputs import ModelDemand, PlanInput

# Share of the requests that may wait longer than the SLO allows.
LATE_SHARE = 0.01
# A batch may take this share of the SLO, the rest is for the wait.
RUN_SHARE = 0.5
# Waiting requests are to be served within the allowed wait, and at the earliest within this time.
LEAST_DRAIN_S = 5.0
# Weight of the newest second in averages, which so cover about ten seconds. A smaller average than LEAST_AVERAGE, one
# arrival in the two minutes that the slowest averages cover, is 0.
NEWEST_WEIGHT, LEAST_AVERAGE = 0.1, 1.0 / 120.0
# Updates among which a burst is looked for, and the standard deviations of a Poisson count that make it sure.
RECENT_COUNT, SURE_DEVIATIONS = 12, 2.0
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


def needed_workers(context: PlanInput, models: Iterable[str], slo_s: float, waiting: Mapping[str, int]) -> int:
    """Return the workers that the models need together. `waiting`: requests that wait now, by model.

    A model without demand needs none. One without a profile needs a worker, which measures it.
    """
    return sum(_workers_of(context, model, slo_s, waiting.get(model, 0)) for model in models)


def _workers_of(context: PlanInput, model: str, slo_s: float, waiting_count: int) -> int:
    demand = demand_of(context, model)
    if demand.arrivals_per_s <= 0.0 and not waiting_count:
        return 0
    try:
        costs = batch_costs(context, model, saved_share=saved_share(demand))
    except FailedPrecondition:
        return 1
    cost = _full_batch(costs, slo_s)
    slack_s = max(slo_s - cost.latency_s, cost.latency_s) if math.isfinite(slo_s) else cost.latency_s
    servers = waiting_count * cost.latency_s / max(slack_s, LEAST_DRAIN_S)
    if demand.arrivals_per_s > 0.0:
        servers += least_servers(demand.arrivals_per_s * cost.latency_s, slack_s / cost.latency_s)
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


class Forecasts:
    """Smooth values by name, and foresee rising ones. `settles`: the values are arrivals a second, and an average
    covers at least forty arrivals."""

    def __init__(self, *, settles: bool) -> None:
        self._settles = settles
        self._trends: dict[str, RateTrend] = {}
        # Seconds and arrivals of the newest updates.
        self._counts: dict[str, deque[tuple[float, float]]] = {}

    def update(self, now_s: float, newest: Mapping[str, float]) -> None:
        """Add the values since the last call; a missing one is 0. Changes state."""
        for name in {*self._trends, *newest}:
            value, before = newest.get(name, 0.0), self._trends.get(name)
            if before is None or before.rate == 0.0:
                self._trends[name] = RateTrend(value, 0.0, now_s)
                continue
            weight = settled_weight(NEWEST_WEIGHT, before.rate) if self._settles else NEWEST_WEIGHT
            after = before.after(now_s, value, weight)
            if self._settles and (surely := self._surely(name, now_s - before.at_s, value)) > after.rate:
                after = replace(after, rate=surely)
            self._trends[name] = after if after.rate >= LEAST_AVERAGE else RateTrend(at_s=now_s)

    def _surely(self, name: str, elapsed_s: float, rate: float) -> float:
        """Return the rate that the newest arrivals surely exceed, over the best of the last RECENT_COUNT spans: a burst
        counts before an average follows it. Changes state."""
        counts = self._counts.setdefault(name, deque(maxlen=RECENT_COUNT))
        counts.appendleft((elapsed_s, rate * elapsed_s))
        best = span_s = count = 0.0
        for seconds, arrivals in counts:
            span_s, count = span_s + seconds, count + arrivals
            best = max(best, (count - SURE_DEVIATIONS * math.sqrt(count)) / span_s if span_s > 0.0 else 0.0)
        return best

    def ahead(self, name: str, seconds: float = 0.0) -> float:
        """Return the value to expect then."""
        return self._trends.get(name, RateTrend()).ahead(seconds)


class DwellWindow:
    """Let a count of replicas rise at once, and fall to the most that was needed in the last `dwell_s` seconds."""

    def __init__(self, dwell_s: float, now_s: float, count: int) -> None:
        """Begin with the count that runs: the need before is unknown."""
        self.dwell_s = dwell_s
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
        yet. Changes state."""
        self.update(now_s, self.wanted)
