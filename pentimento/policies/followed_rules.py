"""Compute the reuse tables in force: a profile's own rows, raised if their hits broke its promise."""

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
    """Pair a row of a table with the identity under which its hits are watched."""

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
    """Return the row that allowed a hit to skip its steps; None if no table has it any longer."""
    fitting = (
        row
        for row in rows
        if row.watched.from_image == seen.from_image
        and row.watched.reference_model_digest == seen.reference_model_digest
        and skipped_steps(row.threshold, seen.step_count) == seen.skipped_steps
    )
    return next(fitting, None)


def in_force(reuse: ModelReuse, model_digest: str, encoder_digest: str, positions: Positions) -> ModelReuse:
    """Return the tables with every threshold moved to where its hits put it, never below its own.

    A row requires no more similarity than a row that skips more steps and has compared hits. Otherwise no hit would use
    it, so none could show an improvement, while the other row is the stricter test of the same similarities and moves
    by its own hits. A row without compared hits requires no less than rows that skip fewer steps: if they skip too
    many, so does it.
    """

    def followed(table: ReuseTable, from_image: bool) -> ReuseTable:
        rows = sorted(table.thresholds, key=lambda row: row.saved_share)
        seen = [positions.get(_watched(table, row, from_image, model_digest, encoder_digest)) for row in rows]
        return _renewed(table, _in_order(rows, seen))

    return replace(reuse, latents=followed(reuse.latents, False), images=followed(reuse.images, True))


def _in_order(rows: Sequence[Threshold], seen: Sequence[ThresholdPosition | None]) -> Thresholds:
    """Return the rows in force. `rows` ascend by skipped steps; `seen` None: the row has no compared hits."""
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
