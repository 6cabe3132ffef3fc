"""Keep a replica in the fleet: register, report, deregister.

    registration = Registration(controller, replica=lambda: ..., report=lambda: ...)
    registration.start()            # once the service is warm; or `run()` inside an existing task
    registration.report_soon()      # optional: the report has just changed (draining)
    await registration.close()      # deregisters, within `CLOSE_TIMEOUT_S`

`run` never raises and never blocks the service: an unavailable, restarted or faulty controller causes only log lines.
The controller's state is soft: NOT_FOUND to a report means that it restarted, and the replica registers again. It also
registers again if its description changed in a way that reports do not contain.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from pentimento.clients.controller import ControllerClient
from pentimento.domain.clock import Backoff, Clock
from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError
from pentimento.domain.fleet import Replica, ReplicaLease, ReplicaReport

logger = logging.getLogger(__name__)

RETRIES = Backoff(first_s=0.1, max_s=2.0)
CALL_TIMEOUT_S = 1.0
CLOSE_TIMEOUT_S = 2.0
# The controller chooses the interval of reports within these limits.
MIN_INTERVAL_S = 0.05
MAX_INTERVAL_S = 10.0
DEFAULT_INTERVAL_S = 1.0


def generation_at(clock: Clock) -> int:
    """Return the wall-clock milliseconds of a process's start, which grow from start to start without stored state."""
    return int(clock.wall() * 1000)


def _nothing() -> None:
    return


@dataclass(frozen=True)
class RegistrationNews:
    """Hold the callbacks on the event loop: the controller registered the replica, or answered a report."""

    registered: Callable[[], None] = _nothing
    answered: Callable[[], None] = _nothing


NO_NEWS = RegistrationNews()


class Registration:
    """Keep one replica registered. `replica` and `report` are called for every message, on the event loop."""

    def __init__(
        self,
        controller: ControllerClient,
        replica: Callable[[], Replica],
        report: Callable[[], ReplicaReport],
        *,
        news: RegistrationNews = NO_NEWS,
    ) -> None:
        self._controller = controller
        self._replica = replica
        self._report = report
        self._news = news
        self._random = random.Random()
        self._lease: ReplicaLease | None = None
        self._known_as: tuple[str, int] | None = None
        # The replica's description at the controller, without the parts that reports contain.
        self._told: Replica | None = None
        self._failures = 0
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Start a task that keeps the replica registered; `close` ends it."""
        if self._loop is None and not self._closed:
            self._loop = asyncio.create_task(self._keep_registered(), name="registration")

    async def run(self) -> None:
        """Keep the replica registered until `close`, or until the calling task is cancelled."""
        self.start()
        if self._loop is None:
            return
        try:
            await asyncio.wait({self._loop})
        finally:
            self._loop.cancel()

    def report_soon(self) -> None:
        """Send the next report now."""
        self._wake.set()

    async def close(self) -> None:
        """Stop reporting and deregister, within `CLOSE_TIMEOUT_S`; without a deregistration the lease expires."""
        self._closed = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        if self._known_as is None:
            return
        instance_id, generation = self._known_as
        self._known_as = self._lease = None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._controller.deregister(instance_id, generation)
        except Exception as error:  # harmless: the lease expires
            logger.info("could not deregister (%s: %s)", type(error).__name__, error)

    async def _keep_registered(self) -> None:
        while True:
            await self._attempt(self._beat)
            await self._pause(self._delay_s())

    async def _attempt(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make one call; failures are counted, and logged once per outage, never raised."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await call()
        except Exception as error:  # after any error the service and the next attempt continue
            self._note_failure(error)
        else:
            if self._failures:
                logger.info("controller answers again after %d failed calls", self._failures)
            self._failures = 0

    async def _beat(self) -> None:
        if self._lease is None or _unreported(self._replica()) != self._told:
            await self._register()
        else:
            await self._send_report()

    async def _register(self) -> None:
        replica = self._replica()
        self._known_as, self._told = (replica.instance_id, replica.generation), None
        self._lease = await self._controller.register(replica)
        self._told = _unreported(replica)
        self._news.registered()
        logger.info("registered with the controller, leader epoch %s", self._lease.leader_epoch)

    async def _send_report(self) -> None:
        try:
            await self._controller.report(self._report())
        except (NotFound, FailedPrecondition):
            # The controller restarted, or another start of this instance replaced this one.
            self._lease = None
            await self._register()
        else:
            self._news.answered()

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures > 1:
            return
        if isinstance(error, FailedPrecondition):
            # Another live process has this identity: no requests come here until this process has its own.
            logger.error("the controller rejects this replica (%s): %s", error.reason, error.message)
        elif isinstance(error, PentimentoError | TimeoutError):
            logger.warning("controller cannot be reached (%s: %s); serving continues", type(error).__name__, error)
        else:
            logger.exception("registration failed; serving continues")

    def _delay_s(self) -> float:
        if self._failures:
            return RETRIES.random_delay_s(self._failures, self._random)
        return report_interval_s(self._lease)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()


def report_interval_s(lease: ReplicaLease | None) -> float:
    """Return the lease's interval between reports in seconds, bounded by two reports per lease and by our limits."""
    if lease is None or not _is_positive(lease.report_interval_ms) or not _is_positive(lease.lease_ms):
        return DEFAULT_INTERVAL_S
    asked_s = min(lease.report_interval_ms, lease.lease_ms / 2) / 1000
    return min(max(asked_s, MIN_INTERVAL_S), MAX_INTERVAL_S)


def _unreported(replica: Replica) -> Replica:
    # LoRAs change with every image; the credits report them.
    return replace(replica, resident_models=(), held_model_digest="", adapters=())


def _is_positive(value: float) -> bool:
    # NaN compares false with everything.
    return 0 < value < float("inf")
