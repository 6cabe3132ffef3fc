"""The plan: from the controller while it is there, from the ledger when it is not."""

import asyncio
import logging
from collections.abc import Callable

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.clients.controller import ControllerClient
from pentimento.domain.backoff import Backoff
from pentimento.domain.clock import Clock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan
from pentimento.service.saved_plan import believable_plan, is_believable
from pentimento.settings import SettingsError
from pentimento.stores.ledger import Journal
from pentimento.wire.codec import to_bytes

logger = logging.getLogger(__name__)

_RETRIES = Backoff(first_s=0.1, max_s=2.0)


class PlanWatch:
    """Every newer plan is put in force and saved. Without a controller all goes on by the last one. A plan whose epoch
    no controller can have is none: nothing would ever be newer."""

    def __init__(self, controller: ControllerClient | None, journal: Journal, instance_id: str, clock: Clock) -> None:
        self._controller = controller
        self._journal = journal
        self._instance_id = instance_id
        self._clock = clock
        self.plan: Plan | None = None

    async def load(self) -> Plan | None:
        """Changes state: the plan that was last saved; None where there is none that is understood."""
        saved = await asyncio.wrap_future(self._journal.load_plan())
        self.plan = believable_plan(saved, self._clock.wall())
        return self.plan

    async def run(self, on_plan: Callable[[Plan], None]) -> None:
        """Changes state; until cancelled."""
        if self._controller is None:
            return
        delays_s = _RETRIES.delays_s()
        while True:
            try:
                have = self.plan.version if self.plan is not None else None
                async for plan in self._controller.watch_plan(self._instance_id, have):
                    await self._take(plan, on_plan)
                    delays_s = _RETRIES.delays_s()
            except PentimentoError as error:
                logger.debug("no plan received; keeping the last", extra={"reason": error.reason})
            except SettingsError as error:
                logger.error("a plan cannot be followed; keeping the last", extra={"problem": str(error)})
            await asyncio.sleep(next(delays_s))

    async def _take(self, plan: Plan, on_plan: Callable[[Plan], None]) -> None:
        if not is_believable(plan, self._clock.wall()) or (self.plan is not None and plan.version <= self.plan.version):
            return
        before, self.plan = self.plan, plan
        try:
            on_plan(plan)
        except SettingsError:
            # A channel to somebody new lacks a token or a certificate for now: the plan is asked for again.
            self.plan = before
            raise
        try:
            await asyncio.wrap_future(self._journal.save_plan(to_bytes(plan, controller_pb.Plan)))
        except PentimentoError as error:
            logger.warning("the plan could not be saved", extra={"reason": error.reason})
