"""Store the measured quality of hits by threshold, and the thresholds' positions, in the cache's ledger.

A sample's number comes from its threshold's row. Taking it locks the row until the commit, so gateways over one ledger
update a threshold one after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, select, update

from pentimento.domain.online_quality import ComparedHit, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.part import CachePart
from pentimento.stores.ledger.statements import Source, Statement, insert_unless_present
from pentimento.stores.ledger.writer import submitted

_thresholds = tables.quality_thresholds
_samples = tables.quality_samples
_KEY = ("encoder_digest", "model_digest", "reference_model_digest", "from_image", "saved_ppm")


def _is_of(table: Table) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(f"of_{name}") for name in _KEY))


_ADD_THRESHOLD, _ADD_SAMPLE = insert_unless_present(_thresholds), insert_unless_present(_samples)
_COUNT = Statement(
    update(_thresholds).where(_is_of(_thresholds)).values(sample_count=_thresholds.c.sample_count + bindparam("more"))
)
_MOVE = Statement(update(_thresholds).where(_is_of(_thresholds)))
_THRESHOLD = Statement(select(_thresholds).where(_is_of(_thresholds)))
_THRESHOLDS = Statement(select(_thresholds))
_DROP_OLD = Statement(delete(_samples).where(_is_of(_samples), _samples.c.number <= bindparam("oldest")))
_SAMPLES = Statement(
    select(*_samples.c["number", "similarity", "quality", "scratch_quality"])
    .where(_is_of(_samples))
    .order_by(_samples.c.number)
)

Judge = Callable[[Sequence[QualitySample], ThresholdPosition], ThresholdPosition]


class CacheQuality(CachePart):
    """Follow the measured quality of hits."""

    @submitted
    def note_quality(
        self, connection: Connection, watched: WatchedThreshold, seen: ComparedHit, judge: Judge, kept_count: int
    ) -> ThresholdPosition | None:
        """Store a sample, once even if repeated, delete those older than the newest `kept_count` of its threshold, and
        let `judge` compute the threshold's position from the rest. Return the position, or None if the hit was counted
        before."""
        key, of_it = _columns(watched), _columns(watched, "of_")
        _ADD_THRESHOLD.first(connection, **key, **asdict(ThresholdPosition()), sample_count=0)
        _COUNT.change(connection, **of_it, more=1)
        (row,) = _THRESHOLD.rows(connection, **of_it)
        measured = {name: getattr(seen, name) for name in ("request_id", "similarity", "quality", "scratch_quality")}
        if _ADD_SAMPLE.first(connection, **key, **measured, number=row.sample_count) is None:
            _COUNT.change(connection, **of_it, more=-1)
            return None
        _DROP_OLD.change(connection, **of_it, oldest=row.sample_count - kept_count)
        before = ThresholdPosition(row.similarity, row.moved_at_number)
        position = judge(_samples_of(connection, watched), before)
        if position != before:
            _MOVE.change(connection, **of_it, **asdict(position))
        return position

    def quality_positions(self) -> dict[WatchedThreshold, ThresholdPosition]:
        """Return the positions of all thresholds with repeated hits."""
        rows = _THRESHOLDS.rows(self._engine)
        return {_watched(row): ThresholdPosition(row.similarity, row.moved_at_number) for row in rows}

    def quality_counts(self) -> dict[WatchedThreshold, int]:
        """Return the number of samples of every threshold since it moved last."""
        return {_watched(row): row.sample_count - row.moved_at_number for row in _THRESHOLDS.rows(self._engine)}

    def quality_samples(self, watched: WatchedThreshold) -> list[QualitySample]:
        """Return the samples of a threshold, oldest first."""
        return _samples_of(self._engine, watched)


def _samples_of(source: Source, watched: WatchedThreshold) -> list[QualitySample]:
    return [QualitySample(*row) for row in _SAMPLES.rows(source, **_columns(watched, "of_"))]


def _columns(watched: WatchedThreshold, prefix: str = "") -> dict[str, Any]:
    values = {f"{prefix}{name}": getattr(watched, name) for name in _KEY}
    return {**values, f"{prefix}from_image": int(watched.from_image)}


def _watched(row: Any) -> WatchedThreshold:
    values = {name: getattr(row, name) for name in _KEY}
    return WatchedThreshold(**{**values, "from_image": bool(row.from_image)})
