"""Earn reuse: open a model's cells of (K, similarity) while a sequential test shows that they keep the quality.

A row of a table skips K steps from a similarity on. Its cells are ranges of similarity below that. A *trial* takes a
request that starts from noise, generates it again from the cached start that the cell would allow, and compares: no
client receives an image of a cell that is not open. The cell opens once its trials refute that at most 0.95 of its
starts keep alpha of the quality.

The test is a mixture of likelihood ratios against 0.95 (Robbins, 1970): its expectation is at most 1 for every share up
to 0.95, so that it ever exceeds 25 with a probability of at most 1/25 (Ville, 1939), however often it is looked at. It
depends on two counts only, so it continues after a restart.

- A table without any threshold begins with the cell of similarities from FIRST on. Where that cell is bad, a narrower
  one may be good: those from each of NARROWER on open at 100. A bad cell opens with a probability of at most
  1/25 + 1/100 = 0.05.
- Below an open cell, the next one is WIDTH wide and is tested by its own trials alone, so it keeps the promise for
  every mix of similarities.
- An open cell that surely breaks its promise closes by the rule of profiles (`online_quality`), and is tested by new
  trials.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pentimento.domain.online_quality import QualitySample, ThresholdPosition
from pentimento.policies.cache_selection import (
    SelectionContext,
    SelectionRules,
    Threshold,
    UseLatent,
    select_start,
    skipped_steps,
)
from pentimento.policies.online_quality import HIGHEST, followed
from pentimento.profiles.rules import REQUIRED_SHARE, ImageSample

# The similarity of a row that allows nothing.
CLOSED = 1.0
# NIRVANA's strictest similarity. For encoders without a prior it is a hypothesis to test, and allows nothing.
FIRST = 0.95
NARROWER = (0.99, 0.97)
WIDTH = 0.02
# Ratios at which a cell opens.
EVIDENCE = 25.0
EVIDENCE_OF_NARROWER = 100.0
# Samples of a row that are kept. A cell that is not decided by then stays closed.
MOST_SAMPLES = 1000
# Samples after which another K takes its turn. A cell with a share of 0.98 is mostly decided by then.
TURN_SAMPLES = 500
# Alternatives to REQUIRED_SHARE, and their weights.
_ALTERNATIVES = ((0.97, 0.15), (0.98, 0.2), (0.99, 0.3), (1.0, 0.35))


def evidence(kept: int, failed: int) -> float:
    """Return the evidence that more than REQUIRED_SHARE keep the quality, 1 without samples."""
    return math.fsum(
        weight * (share / REQUIRED_SHARE) ** kept * ((1.0 - share) / (1.0 - REQUIRED_SHARE)) ** failed
        for share, weight in _ALTERNATIVES
    )


def earned(
    samples: Sequence[QualitySample], position: ThresholdPosition, own: float, standing: float, alpha: float
) -> ThresholdPosition:
    """Return the position of a row after these samples of its hits and trials.

    `own` is the similarity that the row began with (CLOSED for none), `standing` the one in force, which a row of more
    steps may have earned.
    """
    if own < standing < CLOSED:
        return followed(samples, position, own, alpha)
    if standing < CLOSED:
        moved = followed(samples, position, standing, alpha)
        if moved != position:
            return replace(moved, similarity=CLOSED) if own >= CLOSED and moved.similarity >= HIGHEST else moved
    newest = max((sample.number for sample in samples), default=0)
    fresh = [sample for sample in samples if sample.number > position.moved_at_number]
    if newest - position.moved_at_number > MOST_SAMPLES:
        return position
    opened = _opened(fresh, standing, alpha)
    return position if opened is None else ThresholdPosition(opened, newest)


def explored_from(standing: float) -> float:
    """Return the lowest similarity of the cell that is tested below a threshold."""
    return FIRST if standing >= CLOSED else round(standing - WIDTH, 6)


def trial_start(context: SelectionContext, rules: SelectionRules, row: Threshold) -> UseLatent | None:
    """Return the start that a cell under test would allow to a request that misses; None if there is none.

    `row` has the steps K and the cell's lowest similarity. A smaller K would tell nothing about the cell.
    """
    found = select_start(context, replace(rules, latents=(row,), images=(), retrieves=False))
    if not isinstance(found, UseLatent) or found.resume_step != skipped_steps(row, context.step_count):
        return None
    return found


def _opened(fresh: Sequence[QualitySample], standing: float, alpha: float) -> float | None:
    """Return the threshold that fresh samples allow below `standing`; None if none."""
    lowest = explored_from(standing)
    if _shows(fresh, lowest, standing, alpha, EVIDENCE):
        return lowest
    if standing < CLOSED:
        return None
    shown = [level for level in NARROWER if _shows(fresh, level, standing, alpha, EVIDENCE_OF_NARROWER)]
    return min(shown, default=None)


def _shows(fresh: Iterable[QualitySample], low: float, high: float, alpha: float, needed: float) -> bool:
    """Return whether the cell from `low` to below `high` is shown to keep the quality; CLOSED is no upper limit."""
    cell = [one for one in fresh if one.similarity >= low and (one.similarity < high or high >= CLOSED)]
    kept = sum(ImageSample(one.quality, one.scratch_quality).keeps(alpha) for one in cell)
    return evidence(kept, len(cell) - kept) >= needed


@dataclass(frozen=True)
class RowUnderTest:
    """Describe a row of a table: its share of skipped steps (0..1), its similarity in force, and the samples since that
    moved last."""

    saved_share: float
    standing: float
    sample_count: int


def next_row(rows: Iterable[RowUnderTest]) -> RowUnderTest | None:
    """Return the row for the next trials; None if all are decided.

    The row of most steps comes first: what it earns, the others have too. Every TURN_SAMPLES the next row follows.
    """
    waiting = [row for row in rows if row.sample_count < MOST_SAMPLES]
    return min(waiting, key=lambda row: (row.sample_count // TURN_SAMPLES, -row.saved_share), default=None)
