"""The allocation as it moves: what a plan gives to whom, its thresholds, and what became of requests meanwhile.

`pentimento status --watch --record FILE` writes a line a look, `pentimento bench allocation` draws them.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan
from pentimento.files.json_values import from_json, to_json
from pentimento.files.lines import numbered_lines
from pentimento.reports.panels import Panel, Series

_BARS = "▁▂▃▄▅▆▇█"
_X_LABEL = "seconds"


@dataclass(frozen=True)
class AllocationSample:
    """One look, `at_s` seconds after any start. `workers` by model, `thresholds` by cascade and stage as
    `light>heavy light`; the counts are totals of the frontdoor since its start."""

    at_s: float
    plan: str
    allocator: str = ""
    admission_rate: float = 1.0
    workers: Mapping[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    accepted_count: int = 0
    completed_count: int = 0
    failed_count: int = 0
    rejected_count: int = 0
    late_count: int = 0

    @property
    def arrived_count(self) -> int:
        """Requests that came, refused ones included."""
        return self.accepted_count + self.rejected_count

    @property
    def violated_count(self) -> int:
        """Requests that were refused, dropped, late or failed."""
        return self.failed_count + self.rejected_count + self.late_count


def sample_of_plan(at_s: float, plan: Plan, **counts: int) -> AllocationSample:
    """Return what a plan says; `counts` are those of the sample. Where a stage has several thresholds, its largest
    counts."""
    thresholds = {
        f"{cascade.cascade} {stage.pool}": max(entry.confidence for entry in stage.thresholds)
        for cascade in plan.cascades
        for stage in cascade.stages
        if stage.thresholds
    }
    return AllocationSample(
        at_s,
        f"{plan.version.leader_epoch}.{plan.version.sequence}",
        plan.allocator,
        plan.admission_rate,
        dict(sorted(Counter(assignment.model for assignment in plan.assignments).items())),
        thresholds,
        **counts,
    )


def sample_line(sample: AllocationSample) -> str:
    """Return the sample as a line of a file."""
    return json.dumps(to_json(sample)) + "\n"


def read_samples(path: Path) -> tuple[AllocationSample, ...]:
    """Return the samples of a file; of one that was recorded to again, whose times begin anew there, they go on behind
    those before. Raises InvalidArgument naming line and field, NotFound."""
    samples: list[AllocationSample] = []
    behind_s = 0.0
    for number, line in numbered_lines(path):
        try:
            sample = from_json(AllocationSample, json.loads(line), f"{path}:{number}")
        except (ValueError, RecursionError):
            raise InvalidArgument.of(f"{path}:{number}", "must be a line of `pentimento status --record`") from None
        if samples and behind_s + sample.at_s < samples[-1].at_s:
            behind_s = samples[-1].at_s
        samples.append(replace(sample, at_s=behind_s + sample.at_s))
    return tuple(samples)


def allocation_panels(samples: Sequence[AllocationSample]) -> tuple[Panel, ...]:
    """Return panels of workers by model, thresholds, the admission rate and the share of arrivals whose SLO was
    broken, over time; those without a point are left out."""
    drawn = (
        _by_name("Allocation", "workers", samples, lambda sample: sample.workers, absent=0.0),
        _by_name("Confidence thresholds", "threshold", samples, lambda sample: sample.thresholds, absent=math.nan),
        _by_name("Admission", "share admitted", samples, lambda sample: {"admission": sample.admission_rate}),
        _violations(samples),
    )
    return tuple(panel for panel in drawn if any(y == y for series in panel.series for y in series.y))


def violation_shares(samples: Sequence[AllocationSample]) -> tuple[float, ...]:
    """Return, from each sample to the next, the share of arrivals whose SLO was broken; NaN where nobody came, or the
    frontdoor began anew."""
    return tuple(_violation_share(before, after) for before, after in pairwise(samples))


def sparkline(values: Iterable[float], top: float) -> str:
    """Return a character a value, the higher the nearer to `top`; a blank for NaN."""
    return "".join(
        " " if value != value else _BARS[min(max(int(value / max(top, 1e-9) * len(_BARS)), 0), len(_BARS) - 1)]
        for value in values
    )


def _violation_share(before: AllocationSample, after: AllocationSample) -> float:
    arrived = after.arrived_count - before.arrived_count
    violated = after.violated_count - before.violated_count
    # Who fails now may have come before: the share of a short time can exceed 1.
    return min(violated / arrived, 1.0) if arrived > 0 and violated >= 0 else math.nan


def _by_name(
    title: str,
    label: str,
    samples: Sequence[AllocationSample],
    values: Callable[[AllocationSample], Mapping[str, float]],
    absent: float = math.nan,
) -> Panel:
    names = sorted({name for sample in samples for name in values(sample)})
    at_s = tuple(sample.at_s for sample in samples)
    lines = (Series(name, at_s, tuple(float(values(sample).get(name, absent)) for sample in samples)) for name in names)
    return Panel(title, _X_LABEL, label, tuple(lines))


def _violations(samples: Sequence[AllocationSample]) -> Panel:
    at_s = tuple(sample.at_s for sample in samples[1:])
    return Panel("Violations", _X_LABEL, "share of arrivals", (Series("all", at_s, violation_shares(samples)),))
