"""Add up demand by model from the reports of one planning period, and average it over periods."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.fleet import CONFIDENCE_BINS, AdapterDemand, PoolDemand, ReplicaReport, StartShare
from pentimento.domain.kept_quality import NOTHING_KEPT, KeptQuality, added_up
from pentimento.domain.thinned_steps import NO_STEPS, ThinnableSteps
from pentimento.policies.plan.inputs import ModelDemand, PlanInput, ReplicaView

# A window shorter than this would turn a single arrival into a burst.
MIN_WINDOW_S = 0.05
_SETTLED_COUNT = 40.0
_SLOWEST_S = 120.0
# Requests in an average of shares.
SHARED_COUNT = 50.0


@dataclass
class _Queue:
    """Add up the requests that wait for one model at one replica; `newest` is the count of its last report."""

    newest: int = 0
    total: int = 0
    reports: int = 0

    def add(self, length: int) -> None:
        self.newest = length
        self.total += length
        self.reports += 1


@dataclass
class _Asked:
    """Add up one frontdoor's reports of one model in this period."""

    arrived: int = 0
    violated: int = 0
    scored: int = 0
    deferred: int = 0
    sent_on: int = 0
    starts: Counter[StartShare] = field(default_factory=Counter)
    confidences: Counter[int] = field(default_factory=Counter)
    adapters: Counter[tuple[AdapterKind, str]] = field(default_factory=Counter)
    thinnable: ThinnableSteps = NO_STEPS
    compared: tuple[KeptQuality, ...] = ()
    hits: KeptQuality = NOTHING_KEPT

    def add(self, pool: PoolDemand) -> None:
        self.arrived += pool.arrived_count
        self.violated += pool.dropped_count + pool.late_count
        self.scored += pool.scored_count
        self.deferred += pool.deferred_count
        self.sent_on += pool.deferred_count + pool.stood_in_count
        for start in pool.starts:
            self.starts[replace(start, request_count=0)] += start.request_count
        self.confidences.update(dict(enumerate(pool.confidences)))
        for adapter in pool.adapters:
            self.adapters[adapter.kind, adapter.name] += adapter.request_count
        self.thinnable += pool.thinnable
        self.compared = added_up((self.compared, pool.compared))
        self.hits += pool.hits


@dataclass
class _Reported:
    """Add up the reports of one replica over `covered_s` seconds: a frontdoor's pools, or a worker's queue."""

    covered_s: float = 0.0
    asked: defaultdict[str, _Asked] = field(default_factory=lambda: defaultdict(_Asked))
    queues: defaultdict[str, _Queue] = field(default_factory=lambda: defaultdict(_Queue))


class DemandWindow:
    """Add up reports to the demand by model, over all its pools and all live replicas."""

    def __init__(self) -> None:
        self._reported: defaultdict[str, _Reported] = defaultdict(_Reported)

    def add(self, report: ReplicaReport, covered_s: float) -> None:
        """Add a report, which covers the `covered_s` seconds before it."""
        reported = self._reported[report.instance_id]
        reported.covered_s += covered_s
        lengths = defaultdict[str, int](int)
        for pool in report.demand:
            reported.asked[pool.model].add(pool)
            lengths[pool.model] += pool.queue_length
        if report.resident_models:
            lengths[report.resident_models[0]] += report.queue_length
        for model, length in lengths.items():
            reported.queues[model].add(length)

    def take(self, live: Iterable[ReplicaView]) -> tuple[ModelDemand, ...]:
        """Return and reset the demand since the last call, ordered by model. Requests that wait at a worker count
        for the model that it holds."""
        names = {view.replica.instance_id for view in live}
        reported = [one for name, one in self._reported.items() if name in names]
        self._reported.clear()
        asked = {model for one in reported for model in one.asked}
        waiting = {model for one in reported for model, queue in one.queues.items() if queue.total}
        return tuple(_demand(model, reported) for model in sorted(asked | waiting))


def _demand(model: str, reported: Iterable[_Reported]) -> ModelDemand:
    asked = [(one.asked[model], max(one.covered_s, MIN_WINDOW_S)) for one in reported if model in one.asked]
    queues = [one.queues[model] for one in reported if model in one.queues]
    scored = sum(one.scored for one, _ in asked)
    starts = sum((one.starts for one, _ in asked), Counter[StartShare]())
    confidences = sum((one.confidences for one, _ in asked), Counter[int]())
    adapters = sum((one.adapters for one, _ in asked), Counter[tuple[AdapterKind, str]]())
    return ModelDemand(
        model=model,
        arrivals_per_s=sum(one.arrived / covered_s for one, covered_s in asked),
        queue_length=sum(queue.newest for queue in queues),
        starts=tuple(replace(start, request_count=starts[start]) for start in sorted(starts, key=_order_of)),
        deferred_share=sum(one.deferred for one, _ in asked) / scored if scored else 0.0,
        violation_count=sum(one.violated for one, _ in asked),
        mean_queue_length=sum(queue.total / queue.reports for queue in queues),
        sent_on_per_s=sum(one.sent_on / covered_s for one, covered_s in asked),
        confidences=tuple(confidences[part] for part in range(CONFIDENCE_BINS)) if confidences else (),
        adapters=tuple(
            AdapterDemand(*adapter, adapters[adapter])
            for adapter in sorted(adapters, key=lambda one: (one[0].value, one[1]))
        ),
        thinnable=sum((one.thinnable for one, _ in asked), NO_STEPS),
        compared=added_up(one.compared for one, _ in asked),
        hits=sum((one.hits for one, _ in asked), NOTHING_KEPT),
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


def averaged_demand(newest: float, before: float, weight: float, elapsed_s: float) -> float:
    """Return the average of demand `elapsed_s` after it was `before`, with demand `newest` since then. The result is
    that of one sample a second with `weight`, so that it does not depend on the number of planning rounds."""
    return smoothed(newest, before, 1.0 - (1.0 - weight) ** elapsed_s)
