"""Draw how the allocation moves, from the samples that `pentimento status --watch --record FILE` wrote."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lab.runs.panels import Panel, Series
from pentimento.cli.allocation_samples import AllocationSample, violation_shares
from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import from_json
from pentimento.files.lines import numbered_lines

_X_LABEL = "seconds"


def read_samples(path: Path) -> tuple[AllocationSample, ...]:
    """Return the samples of a file. If it was recorded in several runs, each continues the times of the one before.
    Raises InvalidArgument naming line and field, NotFound."""
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
    """Return panels of workers by model, thresholds, the admission rate and the share of SLO violations over time.
    Panels without a point are left out."""
    drawn = (
        _by_name("Allocation", "workers", samples, lambda sample: sample.workers, absent=0.0),
        _by_name("Confidence thresholds", "threshold", samples, lambda sample: sample.thresholds, absent=math.nan),
        _by_name("Admission", "share admitted", samples, lambda sample: {"admission": sample.admission_rate}),
        _violations(samples),
    )
    return tuple(panel for panel in drawn if not all(math.isnan(y) for series in panel.series for y in series.y))


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
