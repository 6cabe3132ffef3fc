"""How a service hears of plans: each newer one is handed on; without a controller all goes on by the last."""

import asyncio
import logging
from collections.abc import Callable

from pentimento.clients.controller import ControllerClient
from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.epochs import latest_believable
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class PlanFollower:
    """Hands every newer plan to `on_plan`. Belongs to one event loop. `plan` is the one that was heard last."""

    def __init__(
        self,
        controller: ControllerClient,
        instance_id: str,
        on_plan: Callable[[Plan], None],
        clock: Clock | None = None,
    ) -> None:
        self._controller = controller
        self._instance_id = instance_id
        self._on_plan = on_plan
        self._clock = clock or SystemClock()
        self.plan: Plan | None = None

    async def run(self) -> None:
        """Until cancelled. A controller that is away costs nothing: the last plan stands."""
        while True:
            try:
                await self._follow()
            except PentimentoError as error:
                logger.debug("no plan", extra={"reason": error.reason})
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        have = self.plan.version if self.plan is not None else None
        async for plan in self._controller.watch_plan(self._instance_id, have):
            if self.plan is not None and plan.version <= self.plan.version:
                continue  # of a leader that was taken over from
            if plan.version.leader_epoch > latest_believable(self._clock.wall()):
                logger.error("a plan with an impossible epoch is ignored")
                continue
            self.plan = plan
            self._on_plan(plan)
