"""Which of several processes over one ledger is active: the holder of the newest epoch, as long as it beats.

Nobody compares clocks, nor reads one: a standby counts how often in a row it found that the holder's beats had not
moved. One that was stopped itself for a while, with its machine perhaps, takes that for nobody's silence.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pentimento.domain.epochs import LeaseState
from pentimento.domain.errors import PentimentoError

logger = logging.getLogger(__name__)

_BEATS_PER_LEASE = 4


class LeaseLedger(Protocol):
    """The part of a ledger that says who is active. Futures fail with PentimentoErrors."""

    def lease(self) -> "Future[LeaseState]":
        """Return which epoch is active, and its holder's beats."""
        ...

    def beat(self, epoch: int) -> "Future[bool]":
        """Record that the holder of the epoch is alive; False when a newer epoch was claimed."""
        ...

    def take_over(self, holder_id: str, seen: LeaseState, /) -> "Future[int | None]":
        """Claim an epoch from a holder that has not beaten since `seen`; None when it has, or somebody was faster."""
        ...


class LedgerLease:
    """`lease_s`: silence after which a standby takes over."""

    def __init__(self, ledger: LeaseLedger, holder_id: str, lease_s: float) -> None:
        self._ledger = ledger
        self._holder_id = holder_id
        self._lease_s = lease_s
        # For how long its former holder was seen not to beat; None where nobody watched its last beat.
        self.silence_s: float | None = None

    async def wait_and_take_over(self) -> int:
        """Wait until nobody is active, and return the epoch that this process claimed then. The ledger may be away for
        a while; its silence is nobody's."""
        seen: LeaseState | None = None
        silent_looks, saw_beat = 0, False
        while True:
            try:
                state = await asyncio.wrap_future(self._ledger.lease())
                silent_looks = silent_looks + 1 if state == seen else 0
                saw_beat = saw_beat or (seen is not None and state != seen)
                seen = state
                if not state.epoch or silent_looks >= _BEATS_PER_LEASE:
                    epoch = await asyncio.wrap_future(self._ledger.take_over(self._holder_id, state))
                    if epoch is not None:
                        self.silence_s = silent_looks * self._lease_s / _BEATS_PER_LEASE if saw_beat else None
                        logger.warning("took over", extra={"epoch": epoch})
                        return epoch
            except PentimentoError as error:
                seen = None
                logger.warning("the lease cannot be read", extra={"reason": error.reason})
            await asyncio.sleep(self._lease_s / _BEATS_PER_LEASE)

    async def hold(
        self,
        epoch: Callable[[], int],
        on_lost: Callable[[], None],
        on_beat: Callable[[PentimentoError | None], None] = lambda error: None,
    ) -> None:
        """Beat until somebody with a newer epoch than `epoch` says is active. Nothing is to be stopped
        while the ledger is away: nobody can take over either. `on_beat` hears what came of each beat."""
        while True:
            beaten = epoch()
            try:
                held = await asyncio.wrap_future(self._ledger.beat(beaten))
                on_beat(None)
            except PentimentoError as error:
                on_beat(error)
                logger.warning("the lease cannot be renewed", extra={"reason": error.reason})
                held = True
            if not held and beaten == epoch():
                logger.error("another process has taken over", extra={"epoch": beaten})
                on_lost()
                return
            await asyncio.sleep(self._lease_s / _BEATS_PER_LEASE)
