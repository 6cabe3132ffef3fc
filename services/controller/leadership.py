"""Elect the leader through the ledger that several controllers share, and store plans for the next leader.

Planning never waits for the ledger: followers receive a plan immediately. The ledger and every follower reject a
replaced leader by its epoch.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.clock import Clock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan
from pentimento.service.lease import LedgerLease
from pentimento.service.plan_follower import believable_plan
from pentimento.stores.ledger.fleet_ledger import FleetLedger
from pentimento.wire.codec import to_bytes
from services.controller.metrics import UNSAVED_PLANS

logger = logging.getLogger(__name__)


class Leadership:
    """Claim and hold the lead for one controller. The ledger stores `controller_id` with the epoch that it claims."""

    def __init__(self, ledger: FleetLedger, lease: LedgerLease, controller_id: str, clock: Clock) -> None:
        self._ledger = ledger
        self._lease = lease
        self._controller_id = controller_id
        self._clock = clock

    async def begin(self, standby: bool) -> tuple[int, Plan | None]:
        """Take the lead immediately, or as a standby once no other controller leads. Changes state. Return the epoch,
        and the plan of the leader before; None without a believable one."""
        if standby:
            epoch = await self._lease.wait_and_take_over()
        else:
            epoch = await asyncio.wrap_future(self._ledger.claim_epoch(self._controller_id))
        return epoch, await self._left()

    async def hold(self, epoch: Callable[[], int], on_lost: Callable[[], None]) -> None:
        """Hold the lead until another controller takes it. Changes state."""
        await self._lease.hold(epoch, on_lost)

    def rise(self, epoch: int, to: int) -> None:
        """Raise the epoch in the ledger above a newer one that a replica follows. Changes state."""
        _logged(self._ledger.rise(epoch, to), "the epoch could not be raised")

    def keep(self, plan: Plan) -> None:
        """Save the plan for the next leader. Changes state."""
        _logged(self._ledger.save_plan(plan.version, to_bytes(plan, controller_pb.Plan)), "the plan could not be saved")

    async def _left(self) -> Plan | None:
        return believable_plan(await asyncio.wrap_future(self._ledger.load_plan()), self._clock.wall())


def _logged(done: "Future[bool]", failure: str) -> None:
    def look(ended: "Future[bool]") -> None:
        error = ended.exception()
        if error is not None or not ended.result():
            UNSAVED_PLANS.inc()
            reason = error.reason if isinstance(error, PentimentoError) else "SUPERSEDED" if error is None else "DEFECT"
            logger.warning(failure, extra={"reason": reason})

    done.add_done_callback(look)
