"""Add up demand by model from the reports of one planning period, and average it over periods."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.demand import NOTHING_KEPT, AdapterDemand, PoolDemand, StartShare, added_up
from pentimento.domain.fleet import CONFIDENCE_BINS, ReplicaReport
from pentimento.domain.thinned_steps import NO_STEPS
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, ReplicaView

# A window shorter than this would turn a single arrival into a burst.
MIN_WINDOW_S = 0.05
_SETTLED_COUNT = 40.0
_SLOWEST_S = 120.0
# Weight of the newest second in a trend, limited to a share of its weight in the level.
_TREND_WEIGHT, _TREND_SHARE = 0.05, 0.2
# Upper limit of a forecast, as a multiple of the level.
_MOST_GROWTH = 2.0
# Requests in an average of shares.
SHARED_COUNT = 50.0


@dataclass
class _Reported:
    """Hold the reports of one replica over `covered_s` seconds, by model: a frontdoor's pools, and the lengths of the
    queues of frontdoors and workers, one for each report."""

    covered_s: float = 0.0
    pools: defaultdict[str, list[PoolDemand]] = field(default_factory=lambda: defaultdict(list))
    queues: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


class DemandWindow:
    """Add up reports to the demand by model, over all its pools and all live replicas."""

    def __init__(self) -> None:
        self._reported: defaultdict[str, _Reported] = defaultdict(_Reported)

    def add(self, report: ReplicaReport, covered_s: float) -> None:
        """Add a report, which covers the `covered_s` seconds before it."""
        reported = self._reported[report.instance_id]
        reported.covered_s += covered_s
        lengths = Counter[str]()
        for pool in report.demand:
            reported.pools[pool.model].append(pool)
            lengths[pool.model] += pool.queue_length
        if report.resident_models:
            lengths[report.resident_models[0]] += report.queue_length
        for model, length in lengths.items():
            reported.queues[model].append(length)

    def take(self, live: Iterable[ReplicaView]) -> tuple[ModelDemand, ...]:
        """Return and reset the demand since the last call, ordered by model. Requests that wait at a worker count
        for the model that it holds."""
        names = {view.replica.instance_id for view in live}
        reported = [one for name, one in self._reported.items() if name in names]
        self._reported.clear()
        asked = {model for one in reported for model in one.pools}
        waiting = {model for one in reported for model, lengths in one.queues.items() if any(lengths)}
        return tuple(_demand(model, reported) for model in sorted(asked | waiting))


def _demand(model: str, reported: Sequence[_Reported]) -> ModelDemand:
    asked = [one for one in reported if model in one.pools]
    queues = [one.queues[model] for one in reported if model in one.queues]
    pools = [pool for one in asked for pool in one.pools[model]]
    starts, confidences = Counter[StartShare](), Counter[int]()
    adapters = Counter[tuple[AdapterKind, tuple[str, ...]]]()
    for pool in pools:
        for start in pool.starts:
            starts[replace(start, request_count=0)] += start.request_count
        confidences.update(dict(enumerate(pool.confidences)))
        for adapter in pool.adapters:
            adapters[adapter.kind, adapter.names] += adapter.request_count

    def per_s(count: Callable[[PoolDemand], int]) -> float:
        return sum(sum(map(count, one.pools[model])) / max(one.covered_s, MIN_WINDOW_S) for one in asked)

    return ModelDemand(
        model=model,
        arrivals_per_s=per_s(lambda pool: pool.arrived_count),
        queue_length=sum(lengths[-1] for lengths in queues),
        starts=tuple(replace(start, request_count=starts[start]) for start in sorted(starts, key=_order_of)),
        violation_count=sum(pool.dropped_count + pool.late_count for pool in pools),
        mean_queue_length=sum(sum(lengths) / len(lengths) for lengths in queues),
        sent_on_per_s=per_s(lambda pool: pool.deferred_count + pool.stood_in_count),
        confidences=tuple(confidences[part] for part in range(CONFIDENCE_BINS)) if confidences else (),
        adapters=tuple(
            AdapterDemand(kind, names[0], adapters[kind, names], names[1:])
            for kind, names in sorted(adapters, key=lambda one: (one[0].value, one[1]))
        ),
        thinnable=sum((pool.thinnable for pool in pools), NO_STEPS),
        compared=added_up(pool.compared for pool in pools),
        hits=sum((pool.hits for pool in pools), NOTHING_KEPT),
    )


def _order_of(start: StartShare) -> tuple[int, str, int, str]:
    return (start.start_step, start.kind, start.step_count, start.model)


def demand_of(context: PlanInput, model: str) -> ModelDemand:
    """Return the demand for a model; zero without reports of it."""
    return next((demand for demand in context.demand if demand.model == model), ModelDemand(model, 0.0))


def smoothed(newest: float, before: float, weight: float) -> float:
    """Return the exponentially weighted moving average after `newest`, with that weight; `newest` itself if `before` is
    unknown (0)."""
    return before + weight * (newest - before) if before > 0.0 else newest


def settled_weight(weight: float, rate: float) -> float:
    """Return the weight of the newest second in an average of the demand, which has been `rate` (requests a second).

    It is reduced until the average covers forty requests, but at most two minutes: a few seconds of a slow fleet's
    demand carry little information.
    """
    return min(weight, max(rate / _SETTLED_COUNT, 1.0 / _SLOWEST_S))


def share_weight(request_count: int) -> float:
    """Return the weight of `request_count` new requests in an average over about the last fifty."""
    return 1.0 - (1.0 - 1.0 / SHARED_COUNT) ** request_count


@dataclass(frozen=True)
class RateTrend:
    """Hold a rate (requests a second) and its change a second, by Holt's linear smoothing, at `at_s`."""

    rate: float = 0.0
    trend: float = 0.0
    at_s: float = 0.0

    def after(self, now_s: float, came: float, weight: float) -> "RateTrend":
        """Return both after requests came at that rate since `at_s`; `weight` is that of the newest second."""
        elapsed_s = now_s - self.at_s
        expected, trend = self.rate + self.trend * elapsed_s, self.trend
        if expected < 0.0:
            # A load that fell to 0 falls no further: the next requests count immediately.
            expected, trend = 0.0, 0.0
        rate = expected + (1.0 - (1.0 - weight) ** elapsed_s) * (max(came, 0.0) - expected)
        if elapsed_s > 0.0:
            share = 1.0 - (1.0 - min(_TREND_WEIGHT, _TREND_SHARE * weight)) ** elapsed_s
            trend += share * ((rate - self.rate) / elapsed_s - trend)
        return RateTrend(rate, trend, now_s)

    def ahead(self, seconds: float) -> float:
        """Return the rate to plan for: the one in that many seconds if it is above the present, at most twice that."""
        return min(max(self.rate, self.rate + self.trend * seconds), _MOST_GROWTH * self.rate)


def averaged_demand(newest: float, before: float, weight: float, elapsed_s: float) -> float:
    """Return the average of demand `elapsed_s` after it was `before`, with demand `newest` since then. The result is
    that of one sample a second with `weight`, so that it does not depend on the number of planning rounds."""
    return smoothed(newest, before, 1.0 - (1.0 - weight) ** elapsed_s)
