"""Receive plans for a service: pass each newer one on; without a controller the last one stays in force."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.clients.controller import ControllerClient
from pentimento.domain.clock import Backoff, Clock, SystemClock, latest_believable
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.fleet import Plan
from pentimento.settings import SettingsError
from pentimento.wire.codec import from_bytes, to_bytes

logger = logging.getLogger(__name__)

_RETRIES = Backoff(first_s=0.1, max_s=2.0)


class PlanStore(Protocol):
    """Describe the part of a ledger that stores the newest plan. Futures fail with PentimentoErrors."""

    def load_plan(self) -> "Future[bytes | None]":
        """Return the saved plan, None without one."""

    def save_plan(self, plan: bytes) -> "Future[None]":
        """Replace the saved plan."""


class PlanFollower:
    """Receive plans on one event loop; `plan` is the newest. `controller` is None without one. A `store` keeps each
    plan for the next start of the process. A plan with an epoch that no controller can have is ignored: no later plan
    would be newer."""

    def __init__(
        self,
        controller: ControllerClient | None,
        instance_id: str,
        *,
        store: PlanStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._controller = controller
        self._instance_id = instance_id
        self._store = store
        self._clock = clock or SystemClock()
        self.plan: Plan | None = None

    async def load(self) -> Plan | None:
        """Load and return the plan that was saved last; None without a readable and believable one."""
        if self._store is not None:
            saved = await asyncio.wrap_future(self._store.load_plan())
            self.plan = believable_plan(saved, self._clock.wall())
        return self.plan

    async def run(self, on_plan: Callable[[Plan], None]) -> None:
        """Pass every newer plan to `on_plan` until cancelled. If it raises SettingsError, the plan is requested
        again: a channel to a new process may lack a token or a certificate for now."""
        if self._controller is None:
            return
        delays_s = _RETRIES.delays_s()
        while True:
            try:
                have = self.plan.version if self.plan is not None else None
                async for plan in self._controller.watch_plan(self._instance_id, have):
                    await self.take(plan, on_plan)
                    delays_s = _RETRIES.delays_s()
            except PentimentoError as error:
                logger.debug("no plan received; keeping the last", extra={"reason": error.reason})
            except SettingsError as error:
                logger.error("a plan cannot be followed; keeping the last", extra={"problem": str(error)})
            await asyncio.sleep(next(delays_s))

    async def take(self, plan: Plan, on_plan: Callable[[Plan], None]) -> None:
        """Pass the plan to `on_plan` and save it, unless it is unbelievable or not newer."""
        if self.plan is not None and plan.version <= self.plan.version:
            return  # from a replaced leader
        if not _is_believable(plan, self._clock.wall()):
            return
        before, self.plan = self.plan, plan
        try:
            on_plan(plan)
        except SettingsError:
            self.plan = before
            raise
        if self._store is None:
            return
        try:
            await asyncio.wrap_future(self._store.save_plan(to_bytes(plan, controller_pb.Plan)))
        except PentimentoError as error:
            logger.warning("the plan could not be saved", extra={"reason": error.reason})


def believable_plan(saved: bytes | None, wall_s: float) -> Plan | None:
    """Return the saved plan; None without one. Log an error and return None for a plan that cannot be read (a newer
    version may have written it) or has an epoch that no controller can have."""
    try:
        plan = from_bytes(saved, Plan, controller_pb.Plan) if saved else None
    except InvalidArgument as error:
        logger.error("the saved plan cannot be read", extra={"reason": error.reason, "error": error.message})
        return None
    return plan if plan is None or _is_believable(plan, wall_s) else None


def _is_believable(plan: Plan, wall_s: float) -> bool:
    epoch = plan.version.leader_epoch
    believable = epoch <= latest_believable(wall_s)
    if not believable:
        logger.error("a plan with an impossible epoch is ignored", extra={"epoch": epoch})
    return believable
