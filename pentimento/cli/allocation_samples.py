"""Samples of the allocation: a plan's workers and thresholds, and the counts of requests at that time.

`pentimento status --watch --record FILE` writes a sample a refresh, `pentimento bench allocation` draws them.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pentimento.domain.fleet import Plan
from pentimento.files.json_values import to_json

_STARTS = ("noise", "latent", "image")


def plain_pool(pool: str, models: Mapping[str, str]) -> str:
    """Return the title of a pool: its model, numbered if the model has several pools. `models`: the plan's models by
    pool."""
    model = models.get(pool, pool)
    number = pool.removeprefix(f"{model}.")
    return f"{model} (pool {int(number) + 1})" if pool != model and number.isdecimal() else pool


def plain_cascade(name: str) -> str:
    """Return the title of a cascade: `light>heavy` is light → heavy, `noise:light>heavy#1` the second threshold for
    requests from noise, and `image:heavy~light` is heavy alone, unless it would be late."""
    start, colon, way = name.partition(":")
    if not colon or start not in _STARTS:
        start, way = "", name
    models, _, number = way.partition("#")
    first, _, stand_in = models.partition("~")
    title = f"{first.replace('>', ' → ')}{f' from {start}' if start else ''}"
    if stand_in:
        return f"{title}, or {stand_in} if that would be late"
    return title + (f", threshold {int(number) + 1}" if number.isdecimal() and int(number) else "")


def plain_stage(stage: str, models: Mapping[str, str]) -> str:
    """Return the title of a cascade's stage, given as `CASCADE POOL`."""
    cascade, _, pool = stage.rpartition(" ")
    return f"{plain_cascade(cascade)}, at {plain_pool(pool, models)}" if cascade else stage


_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class AllocationSample:
    """A sample, `at_s` seconds after any start. `workers` by model, `thresholds` by cascade and stage as
    `light>heavy light`; the counts are totals since the frontdoor's start."""

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
        """Return the number of arrived requests, rejected ones included."""
        return self.accepted_count + self.rejected_count

    @property
    def violated_count(self) -> int:
        """Return the number of rejected, dropped, late and failed requests."""
        return self.failed_count + self.rejected_count + self.late_count


def sample_of_plan(at_s: float, plan: Plan, **counts: int) -> AllocationSample:
    """Return a sample of a plan with `counts`. A stage with several thresholds has its largest one."""
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


def violation_shares(samples: Sequence[AllocationSample]) -> tuple[float, ...]:
    """Return the share of SLO violations among the arrivals from each sample to the next; NaN without arrivals or after
    a restart of the frontdoor."""
    return tuple(_violation_share(before, after) for before, after in pairwise(samples))


def sparkline(values: Iterable[float], top: float) -> str:
    """Return one character per value, higher for values nearer to `top`; a blank for NaN."""
    return "".join(
        " " if math.isnan(value) else _BARS[min(max(int(value / max(top, 1e-9) * len(_BARS)), 0), len(_BARS) - 1)]
        for value in values
    )


def _violation_share(before: AllocationSample, after: AllocationSample) -> float:
    arrived = after.arrived_count - before.arrived_count
    violated = after.violated_count - before.violated_count
    # A failed request may have arrived earlier, so the share of a short time can exceed 1.
    return min(violated / arrived, 1.0) if arrived > 0 and violated >= 0 else math.nan
