"""Choose the active one of several processes over one ledger: the holder of the newest epoch, while it beats.

No process compares or reads clocks: a standby counts how often in a row the holder's beats had not moved. After a pause
of the standby itself, perhaps with its machine, no silence of the holder is counted.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pentimento.domain.clock import LeaseState
from pentimento.domain.errors import PentimentoError

logger = logging.getLogger(__name__)

_BEATS_PER_LEASE = 4


class LeaseLedger(Protocol):
    """Describe the part of a ledger that records the active process. Futures fail with PentimentoErrors."""

    def lease(self) -> "Future[LeaseState]":
        """Return the active epoch and its holder's beats."""

    def beat(self, epoch: int) -> "Future[bool]":
        """Record that the holder of the epoch is alive; False if a newer epoch was claimed."""

    def take_over(self, holder_id: str, seen: LeaseState, /) -> "Future[int | None]":
        """Claim an epoch from a holder that has not beaten since `seen`; None if it has, or another claim was first."""


class LedgerLease:
    """Claim and hold the lease. `lease_s`: silence after which a standby takes over."""

    def __init__(self, ledger: LeaseLedger, holder_id: str, lease_s: float) -> None:
        self._ledger = ledger
        self._holder_id = holder_id
        self._lease_s = lease_s
        # Observed silence of the former holder; None if no beat of it was observed.
        self.silence_s: float | None = None

    async def wait_and_take_over(self) -> int:
        """Wait until no process is active, claim an epoch and return it. The ledger may be unreachable for a while; its
        silence does not count as the holder's."""
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
        """Beat until the ledger has a newer epoch than `epoch` returns, then call `on_lost`. While the ledger is
        unreachable the process stays active: no other can take over. `on_beat` receives the result of each beat."""
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
