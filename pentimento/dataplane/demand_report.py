"""Report queues, counts and demand of a frontdoor to the controller of its dataplane."""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from pentimento.dataplane.machine import Dataplane
from pentimento.dataplane.pools import Pool
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.demand import NOTHING_KEPT, AdapterDemand, KeptQuality, PoolDemand, StartShare, added_up
from pentimento.domain.fleet import CONFIDENCE_BINS, MAX_TOLD_COUNT, ReplicaReport
from pentimento.domain.thinned_steps import NO_STEPS, ThinnableSteps
from pentimento.policies.plan.entry import NOISE

T = TypeVar("T")
# Names of counts, the same in pools and demand.
COUNTS = (
    "arrived_count",
    "completed_count",
    "dropped_count",
    "late_count",
    "scored_count",
    "deferred_count",
    "stood_in_count",
)


@dataclass(frozen=True)
class Totals:
    """Hold the counts of a pool since the start; a report has the differences."""

    counts: tuple[int, ...] = (0,) * len(COUNTS)
    thinnable: ThinnableSteps = NO_STEPS
    confidences: tuple[int, ...] = (0,) * CONFIDENCE_BINS

    @classmethod
    def of(cls, pool: Pool) -> "Totals":
        """Return the present counts."""
        return cls(tuple(getattr(pool, name) for name in COUNTS), pool.thinnable, tuple(pool.confidences))


@dataclass(frozen=True, order=True)
class CountedStart:
    """Describe a start as reports do; see StartShare."""

    start_step: int = 0
    kind: str = NOISE
    step_count: int = 0
    model: str = ""

    @property
    def from_noise(self) -> "CountedStart":
        """Return the same start, but from noise."""
        return CountedStart(0, NOISE, self.step_count)


class StartCounts:
    """Count by pool, until the next report: the starts of requests, the adapters that they name, and the share of the
    heavy model's quality in compared images."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[CountedStart]] = defaultdict(Counter)
        # Counts by kind and names. LoRAs of one request are counted together.
        self._adapters: defaultdict[str, Counter[tuple[AdapterKind, tuple[str, ...]]]] = defaultdict(Counter)
        self._compared: dict[str, tuple[KeptQuality, ...]] = {}
        self._hits: dict[str, KeptQuality] = {}

    def count_compared(self, pool: str, confidence: float, kept: float) -> None:
        """Count a light image with that confidence (0..1) that kept that share of the heavy model's quality."""
        part = min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
        one = tuple(KeptQuality.of(kept) if number == part else NOTHING_KEPT for number in range(CONFIDENCE_BINS))
        self._compared[pool] = added_up((self._compared.get(pool, ()), one))

    def count_hit(self, pool: str, kept: float) -> None:
        """Count an image that started from the cache and kept that share of the heavy model's quality."""
        self._hits[pool] = self._hits.get(pool, NOTHING_KEPT) + KeptQuality.of(kept)

    def take_kept(self, pool: str) -> tuple[tuple[KeptQuality, ...], KeptQuality]:
        """Return and reset the light images and the hits that were compared since the last call."""
        return self._compared.pop(pool, ()), self._hits.pop(pool, NOTHING_KEPT)

    def count(
        self, pool: str, start: CountedStart, loras: Collection[str] = (), controlnets: Collection[str] = ()
    ) -> None:
        """Count a request by its start, its LoRAs together and each of its ControlNets."""
        self._counts[pool][start] += 1
        self._adapters[pool].update((AdapterKind.CONTROLNET, (name,)) for name in controlnets)
        if loras:
            self._adapters[pool][AdapterKind.LORA, tuple(sorted(set(loras)))] += 1

    def correct(self, pool: str, start: CountedStart) -> None:
        """Move one request, counted under that start, to the start from noise."""
        self._counts[pool][start] -= 1
        self._counts[pool][start.from_noise] += 1

    def take(self, pool: str) -> tuple[StartShare, ...]:
        """Return and reset the starts since the last call, up to the limit of a report. A start that is corrected after
        its report is subtracted from later ones."""
        return tuple(
            StartShare(start.start_step, count, start.kind, start.step_count, start.model)
            for start, count in sorted(_taken(self._counts, pool).items())
        )

    def take_adapters(self, pool: str) -> tuple[AdapterDemand, ...]:
        """Return and reset the adapters named since the last call, up to the limit of a report."""
        taken = _taken(self._adapters, pool)
        ordered = sorted(taken.items(), key=lambda item: (item[0][0].value, item[0][1]))
        return tuple(AdapterDemand(kind, names[0], count, names[1:]) for (kind, names), count in ordered)

    def put_back(self, demand: PoolDemand) -> None:
        """Count the demand again that the controller did not receive."""
        pool = demand.pool or demand.model
        self._compared[pool] = added_up((self._compared.get(pool, ()), demand.compared))
        self._hits[pool] = self._hits.get(pool, NOTHING_KEPT) + demand.hits
        for one in demand.starts:
            counted = CountedStart(one.start_step, one.kind, one.step_count, one.model)
            self._counts[pool][counted] += one.request_count
        for adapter in demand.adapters:
            self._adapters[pool][adapter.kind, adapter.names] += adapter.request_count

    def forget(self) -> None:
        """Drop all counts."""
        self._counts.clear()
        self._adapters.clear()
        self._compared.clear()
        self._hits.clear()


def _taken(counts: defaultdict[str, Counter[T]], pool: str) -> dict[T, int]:
    """Take out the pool's largest counts. Negative counts, and counts beyond a report's limit, stay."""
    of_pool = counts.pop(pool, Counter[T]())
    taken = dict((+of_pool).most_common(MAX_TOLD_COUNT))
    if left := Counter({one: count for one, count in of_pool.items() if count and one not in taken}):
        counts[pool] = left
    return taken


class DemandReport:
    """Add the events since the last answered report to a frontdoor's reports: the controller divides them by the time
    since then. A report that arrives after its call has failed is not counted."""

    def __init__(self, dataplane: Dataplane, starts: StartCounts) -> None:
        self._state = dataplane.state
        self._starts = starts
        self._answered: dict[str, Totals] = {}
        self._reported: dict[str, Totals] = {}
        self._unanswered: tuple[PoolDemand, ...] = ()

    def answered(self) -> None:
        """Forget the last report, which the controller has received."""
        self._answered, self._unanswered = self._reported, ()

    def begin(self) -> None:
        """Start counting: reports cover only events from now on."""
        self._answered = {pool.name: Totals.of(pool) for pool in self._state.pools.values()}
        self._unanswered = ()
        self._starts.forget()

    def added_to(self, report: ReplicaReport) -> ReplicaReport:
        """Return the report with queue, counts, demand and plan. Resets the counts that it takes."""
        state = self._state
        pools = tuple(state.pools.values())
        models = state.index.models
        for one in self._unanswered:
            self._starts.put_back(one)
        self._reported = {pool.name: Totals.of(pool) for pool in pools}
        self._unanswered = tuple(
            demand
            for pool in pools
            if _is_news(demand := self._demand(pool, models.get(pool.name, pool.name))) or pool.workers
        )
        return replace(
            report,
            queue_length=sum(pool.waiting_count for pool in pools),
            running_count=sum(pool.running_count for pool in pools),
            completed_count=state.counters.completed,
            failed_count=state.counters.failed + state.counters.expired + state.counters.dropped,
            demand=self._unanswered,
            plan_version=state.plan.version if state.plan is not None else None,
            draining=state.draining,
        )

    def _demand(self, pool: Pool, model: str) -> PoolDemand:
        before, now = self._answered.get(pool.name, Totals()), self._reported[pool.name]
        counts = {name: new - old for name, new, old in zip(COUNTS, now.counts, before.counts, strict=True)}
        confidences = tuple(new - old for new, old in zip(now.confidences, before.confidences, strict=True))
        compared, hits = self._starts.take_kept(pool.name)
        return PoolDemand(
            model=model,
            queue_length=pool.waiting_count,
            starts=self._starts.take(pool.name),
            pool=pool.name if pool.name != model else "",
            confidences=confidences if counts["scored_count"] else (),
            adapters=self._starts.take_adapters(pool.name),
            thinnable=now.thinnable.since(before.thinnable),
            compared=compared,
            hits=hits,
            **counts,
        )


def _is_news(demand: PoolDemand) -> bool:
    """Return whether the demand has any count. Pools are never dropped, not even those of removed models."""
    return demand != PoolDemand(demand.model, pool=demand.pool)
