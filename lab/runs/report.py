"""One run in figures. They derive only from records, so that live, emulated and simulated runs have equal reports."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lab.runs.figures import (
    Attainment,
    StageShare,
    Window,
    mean_quality,
    start_shares,
    steps_saved,
    tenant_fairness,
    waterfall,
    windows,
)
from lab.runs.record import Outcome, RequestRecord, StageSpan, StartKind
from pentimento.domain.errors import InvalidArgument

WINDOWS = 40


@dataclass(frozen=True)
class Report:
    """A report. Rates are per second of `duration_s`, from second 0 to the last end. `goodput` counts timely answers,
    `throughput` late ones too. `provenance` (JSON values) describes suite, machine and kind of run: a reader must
    see whether figures are live, emulated or simulated."""

    name: str
    provenance: Mapping[str, Any]
    duration_s: float
    overall: Attainment
    classes: Mapping[str, Attainment]
    tenants: Mapping[str, Attainment]
    pools: Mapping[str, Attainment]
    goodput: float
    throughput: float
    quality: float
    deferral_share: float
    starts: Mapping[StartKind, float]
    steps_saved: float
    device_s: float
    jain: float
    stages: tuple[StageShare, ...] = ()
    timeline: tuple[Window, ...] = ()
    latencies_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def device_s_per_answer(self) -> float:
        """Work for requests that got nothing is paid for as well."""
        answered = self.overall.counts[Outcome.COMPLETED] + self.overall.counts[Outcome.LATE]
        return self.device_s / answered if answered else math.nan


def make_report(
    name: str,
    records: Sequence[RequestRecord],
    provenance: Mapping[str, Any] | None = None,
    *,
    warm_up_s: float = 0.0,
    window_s: float | None = None,
) -> Report:
    """The report of a run. Requests that came in the first `warm_up_s` seconds are left out, and the clock begins
    after them; `window_s` is the timeline's step, a fortieth of the run where it is not given."""
    if not 0 <= warm_up_s < math.inf:
        raise InvalidArgument.of("warm_up_s", f"must be at least 0 s and finite, got {warm_up_s}")
    kept = [_moved(record, -warm_up_s) for record in records if record.arrived_s >= warm_up_s]
    duration_s = max((record.ended_s for record in kept), default=0.0)
    overall = Attainment.of(kept)
    in_time, late = overall.counts[Outcome.COMPLETED], overall.counts[Outcome.LATE]
    answered = [record for record in kept if record.outcome.answered]
    return Report(
        name=name,
        provenance=dict(provenance or {}),
        duration_s=duration_s,
        overall=overall,
        classes=_by(kept, "slo_class"),
        tenants=_by(kept, "tenant"),
        pools=_by(kept, "pool"),
        goodput=in_time / duration_s if duration_s else 0.0,
        throughput=(in_time + late) / duration_s if duration_s else 0.0,
        quality=mean_quality(kept),
        deferral_share=sum(record.deferred for record in answered) / len(answered) if answered else math.nan,
        starts=start_shares(kept),
        steps_saved=steps_saved(kept),
        device_s=math.fsum(record.device_s for record in kept),
        jain=tenant_fairness(kept),
        stages=waterfall(kept),
        timeline=windows(kept, window_s or duration_s / WINDOWS) if duration_s else (),
        latencies_s=tuple(sorted(record.latency_s for record in answered)),
    )


def told_apart(reports: Sequence[Report]) -> list[Report]:
    """Return the reports, those of one name with their number among them behind it: `live (1)`, `live (2)`."""
    counts, seen = Counter(report.name for report in reports), Counter[str]()
    named = []
    for report in reports:
        seen[report.name] += 1
        alone = counts[report.name] == 1
        named.append(report if alone else replace(report, name=f"{report.name} ({seen[report.name]})"))
    return named


def _by(records: Sequence[RequestRecord], name: str) -> dict[str, Attainment]:
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[getattr(record, name)].append(record)
    return {key: Attainment.of(groups[key]) for key in sorted(groups)}


def _moved(record: RequestRecord, by_s: float) -> RequestRecord:
    if by_s == 0:
        return record
    stages = tuple(StageSpan(name, began_s + by_s, ended_s + by_s) for name, began_s, ended_s in record.stages)
    return replace(record, arrived_s=record.arrived_s + by_s, ended_s=record.ended_s + by_s, stages=stages)
