"""Which of several frontdoors over one journal is active: the holder of the newest epoch, as long as it beats.

Nobody compares clocks, nor reads one: a standby counts how often in a row it found that the holder's beats had not
moved. One that was stopped itself for a while, with its machine perhaps, takes that for nobody's silence.
"""

import asyncio
import logging
from collections.abc import Callable

from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger import Journal
from pentimento.stores.ledger.records import LeaseState
from services.frontdoor.identity import Identity

logger = logging.getLogger(__name__)

_BEATS_PER_LEASE = 4


class JournalLease:
    """`lease_s`: silence after which a standby takes over."""

    def __init__(self, journal: Journal, identity: Identity, lease_s: float) -> None:
        self._journal = journal
        self._identity = identity
        self._lease_s = lease_s

    async def wait_and_take_over(self) -> int:
        """Changes state: once nobody is active, the epoch that this frontdoor claimed. The journal may be away for a
        while; its silence is nobody's."""
        seen: LeaseState | None = None
        silent_looks = 0
        while True:
            try:
                state = await asyncio.wrap_future(self._journal.lease())
                silent_looks = silent_looks + 1 if state == seen else 0
                seen = state
                if not state.epoch or silent_looks >= _BEATS_PER_LEASE:
                    epoch = await asyncio.wrap_future(self._journal.take_over(self._identity.frontdoor_id, state))
                    if epoch is not None:
                        logger.warning("took over", extra={"epoch": epoch})
                        return epoch
            except PentimentoError as error:
                seen = None
                logger.warning("the lease cannot be read", extra={"reason": error.reason})
            await asyncio.sleep(self._lease_s / _BEATS_PER_LEASE)

    async def hold(self, on_lost: Callable[[], None]) -> None:
        """Changes state: beat until somebody with a newer epoch is active. While the journal is away nothing can be
        accepted or committed, so there is nothing to stop."""
        while True:
            try:
                held = await asyncio.wrap_future(self._journal.beat(self._identity.epoch))
            except PentimentoError as error:
                logger.warning("the lease cannot be renewed", extra={"reason": error.reason})
                held = True
            if not held:
                logger.error("another frontdoor has taken over", extra={"epoch": self._identity.epoch})
                on_lost()
                return
            await asyncio.sleep(self._lease_s / _BEATS_PER_LEASE)
