"""Earn reuse: open a model's cells of (K, similarity) while a sequential test shows that they keep the quality.

A row of a table skips K steps from a similarity on. Its cells are ranges of similarity below that. A *trial* takes a
request that starts from noise, generates it again from the cached start that the cell would allow, and compares: no
client receives an image of a cell that is not open. The cell opens once its trials refute that at most 0.95 of its
starts keep alpha of the quality.

The test is a mixture of likelihood ratios against 0.95 (Robbins, 1970): its expectation is at most 1 for every share up
to 0.95, so that it ever exceeds 25 with a probability of at most 1/25 (Ville, 1939), however often it is looked at. It
depends on two counts only, so it continues after a restart.

- A table without any threshold begins with the cell of similarities from `Cells.first` on. Where that cell is bad, a
  narrower one may be good: those from each of `Cells.narrower` on open at more evidence. Where all are bad, one opens
  with a probability of at most 1/25 + 2/100 for latents, 1/25 + 10/1000 for images. Cosines of prompts and images
  differ by encoder (0.2 to 0.35 by CLIP, 0.5 to 0.8 by the zoo's), so cells of images are spread over all.
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
    Miss,
    SelectionContext,
    SelectionRules,
    Threshold,
    UseImage,
    UseLatent,
    select_start,
    skipped_steps,
)
from pentimento.policies.online_quality import HIGHEST, followed
from pentimento.profiles.rules import REQUIRED_SHARE, ImageSample

# The similarity of a row that allows nothing.
CLOSED = 1.0
WIDTH = 0.02
# Ratio at which a cell opens, but narrower ones of a table without any threshold.
EVIDENCE = 25.0
# Samples of a row that are kept. A cell that is not decided by then stays closed.
MOST_SAMPLES = 1000
# Samples after which another K takes its turn. A cell with a share of 0.98 is mostly decided by then.
TURN_SAMPLES = 500


@dataclass(frozen=True)
class Cells:
    """Hold the cells of a table without any threshold by their lowest similarities: the first one, and narrower ones,
    which open at the ratio `narrower_evidence`."""

    first: float
    narrower: tuple[float, ...]
    narrower_evidence: float


# The first ones are the strictest similarities of NIRVANA and MoDM. For encoders without a prior they are hypotheses to
# test, and allow nothing.
LATENT_CELLS = Cells(0.95, (0.97, 0.99), 100.0)
IMAGE_CELLS = Cells(0.30, tuple(round(0.35 + 0.05 * each, 2) for each in range(10)), 1000.0)


def cells_of(*, from_image: bool) -> Cells:
    """Return the cells of starts from latents or images."""
    return IMAGE_CELLS if from_image else LATENT_CELLS


# Alternatives to REQUIRED_SHARE, and their weights.
_ALTERNATIVES = ((0.97, 0.15), (0.98, 0.2), (0.99, 0.3), (1.0, 0.35))


def evidence(kept: int, failed: int) -> float:
    """Return the evidence that more than REQUIRED_SHARE keep the quality, 1 without samples."""
    return math.fsum(
        weight * (share / REQUIRED_SHARE) ** kept * ((1.0 - share) / (1.0 - REQUIRED_SHARE)) ** failed
        for share, weight in _ALTERNATIVES
    )


def earned(
    samples: Sequence[QualitySample],
    position: ThresholdPosition,
    own: float,
    standing: float,
    alpha: float,
    cells: Cells = LATENT_CELLS,
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
    opened = _opened(fresh, standing, alpha, cells)
    return position if opened is None else ThresholdPosition(opened, newest)


def explored_from(standing: float, cells: Cells = LATENT_CELLS) -> float:
    """Return the lowest similarity of the cell that is tested below a threshold."""
    return cells.first if standing >= CLOSED else round(standing - WIDTH, 6)


@dataclass(frozen=True)
class TrialRow:
    """Describe a row under test: whether it allows images or latents, its steps K, its next cell's lowest similarity,
    and its samples since it moved last."""

    from_image: bool
    row: Threshold
    sample_count: int = 0


def trial_start(context: SelectionContext, rules: SelectionRules, tested: TrialRow) -> UseLatent | UseImage | None:
    """Return the start that a cell under test would allow to a request that misses; None if there is none. A smaller K
    would tell nothing about the cell."""
    latents, images = ((), (tested.row,)) if tested.from_image else ((tested.row,), ())
    found = select_start(context, replace(rules, latents=latents, images=images, retrieves=False))
    if isinstance(found, Miss):
        return None
    step = found.start_step if isinstance(found, UseImage) else found.resume_step
    return found if step == skipped_steps(tested.row, context.step_count) else None


def _opened(fresh: Sequence[QualitySample], standing: float, alpha: float, cells: Cells) -> float | None:
    """Return the threshold that fresh samples allow below `standing`; None if none."""
    lowest = explored_from(standing, cells)
    if _shows(fresh, lowest, standing, alpha, EVIDENCE):
        return lowest
    if standing < CLOSED:
        return None
    shown = (level for level in cells.narrower if _shows(fresh, level, standing, alpha, cells.narrower_evidence))
    return min(shown, default=None)


def _shows(fresh: Iterable[QualitySample], low: float, high: float, alpha: float, needed: float) -> bool:
    """Return whether the cell from `low` to below `high` is shown to keep the quality; CLOSED is no upper limit."""
    cell = [one for one in fresh if one.similarity >= low and (one.similarity < high or high >= CLOSED)]
    kept = sum(ImageSample(one.quality, one.scratch_quality).keeps(alpha) for one in cell)
    return evidence(kept, len(cell) - kept) >= needed


def next_row(rows: Iterable[tuple[Threshold, int]]) -> tuple[Threshold, int] | None:
    """Return the row for the next trials, of rows in force with the samples since they moved last; None if all are
    decided.

    The row of most steps comes first: what it earns, the others have too. Every TURN_SAMPLES the next row follows.
    """
    waiting = [(row, count) for row, count in rows if count < MOST_SAMPLES]
    return min(waiting, key=lambda one: (one[1] // TURN_SAMPLES, -one[0].saved_share), default=None)
