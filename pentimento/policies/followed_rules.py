"""Tables of reuse as they are in force: a profile's own, raised where hits were seen to break its promise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from pentimento.domain.online_quality import ComparedHit, ThresholdPosition, WatchedThreshold
from pentimento.policies.cache_selection import Threshold, Thresholds, skipped_steps
from pentimento.policies.reuse_rules import ModelReuse, ReuseTable

_MILLION = 1_000_000
RAISED = "raised by what hits kept"

Positions = Mapping[WatchedThreshold, ThresholdPosition]


@dataclass(frozen=True)
class FollowedRow:
    """A row of a table, and what it is watched as."""

    watched: WatchedThreshold
    threshold: Threshold
    table: ReuseTable


def followed_rows(reuse: ModelReuse, model_digest: str, encoder_digest: str) -> tuple[FollowedRow, ...]:
    """Return the rows of a model's own tables, latents first."""
    return tuple(
        FollowedRow(_watched(table, row, from_image, model_digest, encoder_digest), row, table)
        for table, from_image in ((reuse.latents, False), (reuse.images, True))
        for row in table.thresholds
    )


def row_of(rows: tuple[FollowedRow, ...], seen: ComparedHit) -> FollowedRow | None:
    """Return the row by which a hit was allowed to skip its steps; None where no table has it any more."""
    fitting = (
        row
        for row in rows
        if row.watched.from_image == seen.from_image
        and row.watched.reference_model_digest == seen.reference_model_digest
        and skipped_steps(row.threshold, seen.step_count) == seen.skipped_steps
    )
    return next(fitting, None)


def in_force(reuse: ModelReuse, model_digest: str, encoder_digest: str, positions: Positions) -> ModelReuse:
    """Return the tables with every threshold where its hits put it, never below its own.

    What skips fewer steps asks for no more than what skips more, once hits of the latter were painted again: it would
    serve nothing any more, so no hit could ever say that things are better, while the row that skips more is the
    stricter test of the same similarities and moves by its own hits. A row without any asks for no less than what skips
    fewer: where those steps are too many, more of them are.
    """

    def followed(table: ReuseTable, from_image: bool) -> ReuseTable:
        rows = sorted(table.thresholds, key=lambda row: row.saved_share)
        seen = [positions.get(_watched(table, row, from_image, model_digest, encoder_digest)) for row in rows]
        return _renewed(table, _in_order(rows, seen))

    return replace(reuse, latents=followed(reuse.latents, False), images=followed(reuse.images, True))


def _in_order(rows: Sequence[Threshold], seen: Sequence[ThresholdPosition | None]) -> Thresholds:
    """Return the rows, which skip more and more steps, where they are in force; `seen` None: no hit said anything."""
    highest, allowed = 1.0, list[float]()
    for row, position in zip(reversed(rows), reversed(seen), strict=True):
        if position is None:
            allowed.append(row.min_similarity)
            continue
        highest = max(row.min_similarity, min(highest, position.similarity))
        allowed.append(highest)
    lowest = accumulate(reversed(allowed), max)
    return tuple(Threshold(similarity, row.saved_share) for similarity, row in zip(lowest, rows, strict=True))


def _renewed(table: ReuseTable, rows: Thresholds) -> ReuseTable:
    own = {row.saved_share: row.min_similarity for row in table.thresholds}
    if all(row.min_similarity == own[row.saved_share] for row in rows):
        return table
    return replace(table, thresholds=rows, source=f"{table.source}, {RAISED}")


def _watched(
    table: ReuseTable, row: Threshold, from_image: bool, model_digest: str, encoder_digest: str
) -> WatchedThreshold:
    reference = table.reference_model_digest or model_digest
    return WatchedThreshold(encoder_digest, model_digest, reference, from_image, round(row.saved_share * _MILLION))
