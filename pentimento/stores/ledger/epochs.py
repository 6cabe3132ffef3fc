"""Decide which of several processes over one ledger is active: a row holds the newest epoch and its holder's beats."""

from concurrent.futures import Future
from typing import Any

from sqlalchemy import BigInteger, Table, bindparam, case, or_, select, update

from pentimento.domain.clock import Clock, LeaseState, epoch_at
from pentimento.domain.errors import Unavailable
from pentimento.domain.reasons import Reason
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.writer import GroupCommitWriter

# After this time clients have been redirected, or the process has ended.
SUPERSEDED_RETRY_MS = 1000
_NO_LIMIT = 2**62


def superseded() -> Unavailable:
    """Return the error that a superseded frontdoor answers to clients."""
    return Unavailable(Reason.SUPERSEDED, "another frontdoor has taken over", retry_after_ms=SUPERSEDED_RETRY_MS)


class EpochLedger:
    """Claim epochs in a ledger. Every method returns immediately; its future resolves after the commit."""

    def __init__(self, writer: GroupCommitWriter, clock: Clock, epochs: Table, holder: str) -> None:
        """Open a table of one row, with the columns `epoch` and `beat`, and that of the name `holder` for its id."""
        self._writer = writer
        self._submit = writer.submit
        self._clock = clock
        epoch, least = epochs.c.epoch, bindparam("least", type_=BigInteger)
        is_unusable = or_(epoch < least, epoch >= bindparam("most"))
        following = case((is_unusable, least), else_=epoch + 1)
        self._claiming = (
            update(epochs).values({"epoch": following, holder: bindparam("holder_id"), "beat": 0}).returning(epoch)
        )
        is_as_seen = (epoch == bindparam("seen_epoch"), epochs.c.beat == bindparam("seen_beat"))
        beating = update(epochs).where(epoch == bindparam("of_epoch")).values(beat=epochs.c.beat + 1)
        self._claim, self._take_over = Statement(self._claiming), Statement(self._claiming.where(*is_as_seen))
        self._beat, self._beat_with_columns = Statement(beating), Statement(beating)
        self._lease = Statement(select(epoch, epochs.c.beat))

    def _most(self, now: float) -> int:
        """Return the least epoch that is not believed: a claim after it begins again with the clock's."""
        return _NO_LIMIT

    def _beat_columns(self) -> dict[str, Any]:
        """Return the columns that a beat writes in addition to its number: always the same ones, or none."""
        return {}

    def claim_epoch(self, holder_id: str) -> "Future[int]":
        """Claim an epoch and return it. It is larger than every believable epoch claimed before, by any process, in
        this or an earlier ledger. Its holder is the active process from then on."""
        claimed = self._claim_of(holder_id)
        return self._submit(lambda connection: int(self._claim.scalar(connection, **claimed)))

    def lease(self) -> "Future[LeaseState]":
        """Return the active epoch and its holder's beats: a standby watches whether they continue."""
        return self._submit(lambda connection: LeaseState(*self._lease.rows(connection)[0]))

    def beat(self, epoch: int) -> "Future[bool]":
        """Record that the holder of the epoch is alive; False if a newer epoch was claimed: the holder must stop."""
        columns = self._beat_columns()
        statement = self._beat_with_columns if columns else self._beat
        return self._submit(lambda connection: statement.change(connection, of_epoch=epoch, **columns) == 1)

    def take_over(self, holder_id: str, seen: LeaseState) -> "Future[int | None]":
        """Claim an epoch from a holder without a beat since `seen`; None if it has beaten, or another process was
        faster."""
        claimed = {**self._claim_of(holder_id), "seen_epoch": seen.epoch, "seen_beat": seen.beat}
        return self._submit(lambda connection: self._take_over.scalar(connection, **claimed))

    def _claim_of(self, holder_id: str) -> dict[str, Any]:
        now = self._clock.wall()
        return {"holder_id": holder_id, "least": epoch_at(now), "most": self._most(now)}
