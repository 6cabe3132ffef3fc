"""Decide which of several processes over one ledger is active: a row holds the newest epoch and its holder's beats."""

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Table, and_, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from pentimento.domain.epochs import LeaseState
from pentimento.domain.errors import Unavailable
from pentimento.domain.reasons import Reason
from pentimento.stores.ledger.writer import GroupCommitWriter

# After this time clients have been redirected, or the process has ended.
SUPERSEDED_RETRY_MS = 1000


def superseded() -> Unavailable:
    """Return the error that a superseded frontdoor answers to clients."""
    return Unavailable(Reason.SUPERSEDED, "another frontdoor has taken over", retry_after_ms=SUPERSEDED_RETRY_MS)


class EpochLedger(ABC):
    """Claim epochs in a ledger. `epochs` has one row, with the columns `epoch` and `beat`. Every method returns
    immediately; its future resolves after the commit."""

    def __init__(self, writer: GroupCommitWriter, epochs: Table) -> None:
        self._writer = writer
        self._submit = writer.submit
        self._epochs = epochs

    @abstractmethod
    def _claim(self, holder_id: str) -> ReturningUpdate[int]:
        """Return the statement that claims a larger epoch than every one before, and returns it."""

    def _beat_columns(self) -> dict[str, Any]:
        """Return the columns that a beat writes in addition to its number."""
        return {}

    def claim_epoch(self, holder_id: str) -> "Future[int]":
        """Claim an epoch and return it. It is larger than every believable epoch claimed before, by any process, in
        this or an earlier ledger. Its holder is the active process from then on."""
        statement = self._claim(holder_id)
        return self._submit(lambda connection: int(connection.execute(statement).scalar_one()))

    def lease(self) -> "Future[LeaseState]":
        """Return the active epoch and its holder's beats: a standby watches whether they continue."""
        statement = select(self._epochs.c.epoch, self._epochs.c.beat)
        return self._submit(lambda connection: LeaseState(*connection.execute(statement).one()))

    def beat(self, epoch: int) -> "Future[bool]":
        """Record that the holder of the epoch is alive; False if a newer epoch was claimed: the holder must stop."""
        columns = self._epochs.c
        statement = (
            update(self._epochs).where(columns.epoch == epoch).values(beat=columns.beat + 1, **self._beat_columns())
        )
        return self._submit(lambda connection: connection.execute(statement).rowcount == 1)

    def take_over(self, holder_id: str, seen: LeaseState) -> "Future[int | None]":
        """Claim an epoch from a holder without a beat since `seen`; None if it has beaten, or another process was
        faster."""
        is_as_seen = and_(self._epochs.c.epoch == seen.epoch, self._epochs.c.beat == seen.beat)
        statement = self._claim(holder_id).where(is_as_seen)
        return self._submit(lambda connection: connection.execute(statement).scalar_one_or_none())
