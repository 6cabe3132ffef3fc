"""The plan: from the controller while it is there, from the ledger when it is not."""

import asyncio
import logging
from collections.abc import Callable

from pentimento.clients.controller import ControllerClient
from pentimento.clients.messages.fleet import plan_from_bytes, plan_to_bytes
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan
from pentimento.stores.ledger import Journal

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 2.0


class PlanWatch:
    """Every newer plan is put in force and saved. Without a controller all goes on by the last one."""

    def __init__(self, controller: ControllerClient | None, journal: Journal, instance_id: str) -> None:
        self._controller = controller
        self._journal = journal
        self._instance_id = instance_id
        self.plan: Plan | None = None

    async def load(self) -> Plan | None:
        """Changes state: the plan that was last saved."""
        saved = await asyncio.wrap_future(self._journal.load_plan())
        self.plan = plan_from_bytes(saved) if saved else None
        return self.plan

    async def run(self, on_plan: Callable[[Plan], None]) -> None:
        """Changes state; until cancelled."""
        if self._controller is None:
            return
        delay = _FIRST_RETRY_S
        while True:
            try:
                have = self.plan.version if self.plan is not None else None
                async for plan in self._controller.watch_plan(self._instance_id, have):
                    delay = _FIRST_RETRY_S
                    await self._take(plan, on_plan)
            except PentimentoError as error:
                logger.debug("no plan to be had; going on with the last", extra={"reason": error.reason})
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_RETRY_S)

    async def _take(self, plan: Plan, on_plan: Callable[[Plan], None]) -> None:
        if self.plan is not None and plan.version <= self.plan.version:
            return
        self.plan = plan
        on_plan(plan)
        try:
            await asyncio.wrap_future(self._journal.save_plan(plan_to_bytes(plan)))
        except PentimentoError as error:
            logger.warning("the plan could not be saved", extra={"reason": error.reason})
