"""A worker that holds what the plan says: for devices that can hold one model or another."""

import asyncio
import logging
from collections.abc import Callable

from pentimento.clients.controller import ControllerClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Plan, PlanAcknowledgement, WorkerAssignment

logger = logging.getLogger(__name__)

RETRY_S = 0.5
# This allocator decides nothing: whoever holds a model goes on with it, in batches of its own.
HOLDS_RESIDENT = "resident"


class PlanFollower:
    """Tells `assign` what the plan wants of this worker. Belongs to one event loop."""

    def __init__(
        self, controller: ControllerClient, worker_id: str, assign: Callable[[WorkerAssignment], None]
    ) -> None:
        self._controller = controller
        self._worker_id = worker_id
        self._assign = assign
        self._plan: Plan | None = None

    def acknowledgement(self, model_digest: str) -> PlanAcknowledgement | None:
        """Of the plan that was heard last, and what is held now."""
        return PlanAcknowledgement(self._plan.version, model_digest) if self._plan is not None else None

    async def run(self) -> None:
        """Until cancelled. A controller that is away costs nothing: the last plan stands."""
        while True:
            try:
                await self._follow()
            except PentimentoError as error:
                logger.debug("no plan", extra={"reason": error.reason})
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        have = self._plan.version if self._plan is not None else None
        async for plan in self._controller.watch_plan(self._worker_id, have):
            if self._plan is not None and plan.version <= self._plan.version:
                continue  # of a leader that was taken over from
            self._plan = plan
            wanted = next((entry for entry in plan.assignments if entry.worker_id == self._worker_id), None)
            if wanted is not None and plan.allocator != HOLDS_RESIDENT:
                self._assign(wanted)
