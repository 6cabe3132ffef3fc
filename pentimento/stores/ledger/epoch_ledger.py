"""Which of several processes over one ledger is active: a row that has the newest epoch and the beats of its holder."""

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Table, and_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from pentimento.domain.epochs import LeaseState
from pentimento.domain.errors import Unavailable
from pentimento.domain.reasons import Reason
from pentimento.stores.ledger.writer import GroupCommitWriter

# By then its clients have been told where to go, or it is gone.
SUPERSEDED_RETRY_MS = 1000


def superseded() -> Unavailable:
    """Return what a client hears of a frontdoor that is no longer the active one."""
    return Unavailable(Reason.SUPERSEDED, "another frontdoor has taken over", retry_after_ms=SUPERSEDED_RETRY_MS)


class EpochLedger(ABC):
    """The part of a ledger that processes claim epochs in. `epochs` has one row, with the columns `epoch` and `beat`.
    Every method returns at once; its future resolves after the commit."""

    def __init__(self, writer: GroupCommitWriter, epochs: Table) -> None:
        self._writer = writer
        self._epochs = epochs

    @abstractmethod
    def _claim(self, holder_id: str) -> ReturningUpdate[int]:
        """Return the statement that claims a larger epoch than every one before, and returns it."""

    def _beat_columns(self) -> dict[str, Any]:
        """Return what a beat writes besides its number."""
        return {}

    def claim_epoch(self, holder_id: str) -> "Future[int]":
        """Claim an epoch and return it. It is larger than every one that was claimed before and that others believe, by
        anybody, here or in an earlier ledger. Its holder is the active one from then on."""
        statement = self._claim(holder_id)
        return self._writer.submit(lambda connection: int(connection.execute(statement).scalar_one()))

    def lease(self) -> "Future[LeaseState]":
        """Return which epoch is active, and its holder's beats: a standby watches whether they go on."""
        statement = select(self._epochs.c.epoch, self._epochs.c.beat)
        return self._writer.submit(lambda connection: LeaseState(*connection.execute(statement).one()))

    def beat(self, epoch: int) -> "Future[bool]":
        """Record that the holder of the epoch is alive; False when a newer epoch was claimed: it has to stop."""
        columns = self._epochs.c
        statement = (
            update(self._epochs).where(columns.epoch == epoch).values(beat=columns.beat + 1, **self._beat_columns())
        )
        return self._writer.submit(lambda connection: connection.execute(statement).rowcount == 1)

    def take_over(self, holder_id: str, seen: LeaseState) -> "Future[int | None]":
        """Claim an epoch from a holder that has not beaten since `seen`; None when it has, or somebody was faster."""
        is_as_seen = and_(self._epochs.c.epoch == seen.epoch, self._epochs.c.beat == seen.beat)
        statement = self._claim(holder_id).where(is_as_seen)
        return self._writer.submit(lambda connection: connection.execute(statement).scalar_one_or_none())
