"""Send the newest plan to every watcher. Nothing is queued: a slow watcher skips to the newest."""

import asyncio
from collections.abc import AsyncGenerator

from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.domain.reasons import Reason
from services.controller.metrics import WATCHERS

# Open plan streams.
MAX_WATCHERS = 4096


class PlanFeed:
    """Publish plans on one event loop.

    A watcher with a plan of an earlier leader receives none until `settle`: right after a restart only a part of the
    fleet is known, and a plan without half of the workers would be an outage. Until then the earlier leader's last
    plan, if any (`restore`), is in force for all watchers.
    """

    def __init__(self, max_watchers: int = MAX_WATCHERS) -> None:
        self._max_watchers = max_watchers
        self._watchers = 0
        self._plan: Plan | None = None
        self._restored: Plan | None = None
        self._settled = False
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def in_force(self) -> Plan | None:
        """Return the plan that watchers receive, unless they hold it or a newer one."""
        return self._plan if self._settled or self._restored is None else self._restored

    def restore(self, plan: Plan) -> None:
        """Put the earlier leader's last plan in force. Changes state."""
        self._restored = plan
        self._notify()

    def publish(self, plan: Plan) -> None:
        """Set the newest plan, and wake the watchers. Changes state."""
        self._plan = plan
        self._notify()

    def settle(self) -> None:
        """Allow the newest plan for watchers that hold one of an earlier leader. Changes state."""
        if not self._settled:
            self._settled = True
            self._notify()

    def close(self) -> None:
        """End every stream. Changes state."""
        self._closed = True
        self._notify()

    async def watch(self, have: PlanVersion | None) -> AsyncGenerator[Plan, None]:
        """Yield the plan in force, unless the caller has it, then newer ones. Raises ResourceExhausted above the limit
        of watchers, Unavailable once closed."""
        if self._closed:
            raise Unavailable(Reason.DRAINING, "the controller is stopping", retry_after_ms=500)
        if self._watchers >= self._max_watchers:
            message = f"at most {self._max_watchers} plan watchers are served"
            raise ResourceExhausted("TOO_MANY_WATCHERS", message, retry_after_ms=1000)
        self._watchers += 1
        WATCHERS.set(self._watchers)
        try:
            while not self._closed:
                if (plan := self._news_for(have)) is None:
                    await self._changed.wait()
                else:
                    yield plan
                    have = plan.version
        finally:
            self._watchers -= 1
            WATCHERS.set(self._watchers)

    def _news_for(self, have: PlanVersion | None) -> Plan | None:
        plan = self.in_force
        if plan is None or plan.version == have:
            return None
        if plan is self._restored:
            return plan if have is None or have < plan.version else None
        is_first_of_leader = have is not None and have.leader_epoch != plan.version.leader_epoch
        return None if is_first_of_leader and not self._settled else plan

    def _notify(self) -> None:
        # Each event wakes the present watchers; later ones wait for the next event.
        self._changed.set()
        self._changed = asyncio.Event()
