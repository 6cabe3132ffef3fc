"""Store the measured quality of hits by threshold, and the thresholds' positions, in the cache's ledger.

A sample's number comes from its threshold's row. Taking it locks the row until the commit, so gateways over one ledger
update a threshold one after the other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, select, update

from pentimento.domain.online_quality import ComparedHit, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.database import insert_unless_present

_thresholds = tables.quality_thresholds
_samples = tables.quality_samples
_KEY = ("encoder_digest", "model_digest", "reference_model_digest", "from_image", "saved_ppm")

Judge = Callable[[Sequence[QualitySample], ThresholdPosition], ThresholdPosition]


def note_quality(
    connection: Connection, watched: WatchedThreshold, seen: ComparedHit, judge: Judge, kept_count: int
) -> ThresholdPosition | None:
    """Store a sample, delete those older than the newest `kept_count` of its threshold, and let `judge` compute the
    threshold's position from the rest. Return the position, or None if the hit was counted before."""
    key, is_watched = _columns(watched), _matches(_thresholds, watched)
    insert_unless_present(connection, _thresholds, {**key, **asdict(ThresholdPosition()), "sample_count": 0})
    connection.execute(update(_thresholds).where(is_watched).values(sample_count=_thresholds.c.sample_count + 1))
    row = connection.execute(select(_thresholds).where(is_watched)).one()
    if not insert_unless_present(connection, _samples, {**key, **_measured(seen), "number": row.sample_count}):
        connection.execute(update(_thresholds).where(is_watched).values(sample_count=row.sample_count - 1))
        return None
    oldest = row.sample_count - kept_count
    connection.execute(delete(_samples).where(_matches(_samples, watched), _samples.c.number <= oldest))
    before = ThresholdPosition(row.similarity, row.moved_at_number)
    position = judge(samples_of(connection, watched), before)
    if position != before:
        connection.execute(update(_thresholds).where(is_watched).values(asdict(position)))
    return position


def positions(connection: Connection) -> dict[WatchedThreshold, ThresholdPosition]:
    """Return the position of every threshold with a repeated hit."""
    rows = connection.execute(select(_thresholds))
    return {_watched(row): ThresholdPosition(row.similarity, row.moved_at_number) for row in rows}


def counts(connection: Connection) -> dict[WatchedThreshold, int]:
    """Return the number of samples of every threshold since it moved last."""
    rows = connection.execute(select(_thresholds))
    return {_watched(row): row.sample_count - row.moved_at_number for row in rows}


def samples_of(connection: Connection, watched: WatchedThreshold) -> list[QualitySample]:
    """Return the samples of a threshold, oldest first."""
    statement = select(_samples).where(_matches(_samples, watched)).order_by(_samples.c.number)
    return list(_read(connection.execute(statement)))


def _read(rows: Iterable[Row[Any]]) -> Iterable[QualitySample]:
    return (QualitySample(row.number, row.similarity, row.quality, row.scratch_quality) for row in rows)


def _columns(watched: WatchedThreshold) -> dict[str, Any]:
    return {**{name: getattr(watched, name) for name in _KEY}, "from_image": int(watched.from_image)}


def _measured(seen: ComparedHit) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in ("request_id", "similarity", "quality", "scratch_quality")}


def _matches(table: Any, watched: WatchedThreshold) -> ColumnElement[bool]:
    return and_(*(table.c[name] == value for name, value in _columns(watched).items()))


def _watched(row: Row[Any]) -> WatchedThreshold:
    values = {name: getattr(row, name) for name in _KEY}
    return WatchedThreshold(**{**values, "from_image": bool(row.from_image)})
