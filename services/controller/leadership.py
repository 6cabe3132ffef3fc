"""Elect the leader through the ledger that several controllers share, and store plans for the next leader.

Planning never waits for the ledger: followers receive a plan immediately. The ledger and every follower reject a
replaced leader by its epoch, which is larger after every restart. Controllers that share a ledger claim their epochs
there. Without one it is the wall clock's milliseconds at the start; if the clock was set back, the controller rises
above the epoch that its replicas follow.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.clock import BELIEVABLE_LEAD_MS, Clock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan
from pentimento.service.fleet_member import believable_plan
from pentimento.service.lease import LedgerLease
from pentimento.wire.codec import to_bytes
from services.controller.metrics import UNSAVED_PLANS

if TYPE_CHECKING:
    # A controller without a ledger starts without its libraries.
    from pentimento.stores.ledger.fleet_ledger import FleetLedger

logger = logging.getLogger(__name__)


class LeaderEpoch:
    """Hold the epoch in force as `value`: the time of the start, by `now_ms`, until another one is claimed. `on_rise`
    receives an epoch and the larger one that replaces it."""

    def __init__(self, now_ms: Callable[[], int], on_rise: Callable[[int, int], None] = lambda epoch, to: None) -> None:
        self._now_ms = now_ms
        self._on_rise = on_rise
        self.value = self._started_ms = now_ms()

    def believable(self, epoch: int) -> bool:
        """Return whether a leader can have had this epoch. A false report must not exhaust the epochs."""
        return 0 <= epoch <= max(self._started_ms, self._now_ms()) + BELIEVABLE_LEAD_MS

    def claim(self, epoch: int) -> None:
        """Lead under an epoch that was claimed in the ledger. Changes state."""
        self.value = epoch

    def overtake(self, seen: int) -> bool:
        """Rise above an epoch that a replica follows, and return True; False if it is not above this one, or
        impossible. Changes state."""
        if seen <= self.value or not self.believable(seen):
            return False
        self._on_rise(self.value, seen + 1)
        self.value = seen + 1
        return True


class Leadership:
    """Claim and hold the lead for one controller. The ledger stores `controller_id` with the epoch that it claims."""

    def __init__(self, ledger: "FleetLedger", lease: LedgerLease, controller_id: str, clock: Clock) -> None:
        self._ledger = ledger
        self.lease = lease
        self._controller_id = controller_id
        self._clock = clock

    async def begin(self, standby: bool) -> tuple[int, Plan | None]:
        """Take the lead immediately, or as a standby once no other controller leads. Changes state. Return the epoch,
        and the plan of the leader before; None without a believable one."""
        if standby:
            epoch = await self.lease.wait_and_take_over()
        else:
            epoch = await asyncio.wrap_future(self._ledger.claim_epoch(self._controller_id))
        saved = await asyncio.wrap_future(self._ledger.load_plan())
        return epoch, believable_plan(saved, self._clock.wall())

    def rise(self, epoch: int, to: int) -> None:
        """Raise the epoch in the ledger above a newer one that a replica follows. Changes state."""
        _logged(self._ledger.rise(epoch, to), "the epoch could not be raised")

    def keep(self, plan: Plan) -> None:
        """Save the plan for the next leader. Changes state."""
        _logged(self._ledger.save_plan(plan.version, to_bytes(plan, controller_pb.Plan)), "the plan could not be saved")


def _logged(done: "Future[bool]", failure: str) -> None:
    def look(ended: "Future[bool]") -> None:
        error = ended.exception()
        if error is not None or not ended.result():
            UNSAVED_PLANS.inc()
            reason = error.reason if isinstance(error, PentimentoError) else "SUPERSEDED" if error is None else "DEFECT"
            logger.warning(failure, extra={"reason": reason})

    done.add_done_callback(look)
