"""Wait until a suite's workers are registered; before that, no request reaches them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Fleet
from pentimento.domain.reasons import Reason
from pentimento.supervisor.suite_settings import Suite

LOOK_S = 0.05
LIMIT_S = 120.0
# The controller plans with a worker once it is registered; one without a model may stay unplanned.
PLANNED_LIMIT_S = 2.0
WORKERS = ("services.unet_worker", "lab.emulation.emulated_worker")


class FleetArrival:
    """Wait for a suite's workers.

    `fleet` calls the controller; `last_line` returns the last line of a process's output. After the wait, `unprofiled`
    has the models without a profile that the policy needs."""

    def __init__(
        self,
        suite: Suite,
        fleet: Callable[[], Awaitable[Fleet]],
        last_line: Callable[[str], str],
        limit_s: float = LIMIT_S,
    ) -> None:
        self.unprofiled: tuple[str, ...] = ()
        self._workers = frozenset(spec.name for spec in suite.processes if spec.module in WORKERS)
        self._fleet = fleet
        self._last_line = last_line
        self._limit_s = limit_s

    async def __call__(self) -> str:
        """Wait until every worker is registered and return ""; after the time limit return the reason."""
        began, missing, why = time.monotonic(), self._workers, ""
        while missing:
            try:
                missing = self._workers - _registered(await self._fleet())
                why = ""
            except PentimentoError as error:
                why = f"the controller does not answer: {error}"
            if not missing:
                break
            if time.monotonic() - began > self._limit_s:
                return self._late(missing, why)
            await asyncio.sleep(LOOK_S)
        await self._read_unprofiled()
        return ""

    async def _read_unprofiled(self) -> None:
        limit = time.monotonic() + PLANNED_LIMIT_S
        planned: frozenset[str] = frozenset()
        with suppress(PentimentoError):
            while self._workers - planned and time.monotonic() < limit:
                fleet = await self._fleet()
                planned = frozenset(one.worker_id for one in fleet.plan.assignments)
                lacking = {one.model for one in fleet.unplanned if one.reason == Reason.PROFILE_MISSING}
                self.unprofiled = tuple(sorted(lacking))
                await asyncio.sleep(LOOK_S)

    def _late(self, missing: Iterable[str], why: str) -> str:
        names = sorted(missing)
        said = why or "; ".join(f"{name}'s last line: {self._last_line(name)}" for name in names)
        return f"{', '.join(names)} did not register with the controller within {self._limit_s:.0f} s; {said}"


def _registered(fleet: Fleet) -> frozenset[str]:
    return frozenset(status.replica.instance_id for status in fleet.replicas if status.live)
