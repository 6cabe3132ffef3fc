"""How a replica stays in the fleet: it registers, reports, and says when it goes.

    registration = Registration(controller, replica=lambda: ..., report=lambda: ...)
    registration.start()            # once the service is warm; or `run()` where a task is at hand
    registration.report_soon()      # optional: what the report says has just changed (draining)
    await registration.close()      # deregisters, within `RegistrationTiming.close_timeout_s`

`run` never raises and never holds the service up: a controller that is away, restarted or talking nonsense costs
log lines only. The controller's state is soft, so NOT_FOUND to a report means that it restarted, and the replica
registers again. So it does where what it says of itself has changed and is in no report.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from pentimento.domain.backoff import Backoff
from pentimento.domain.clock import Clock
from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError
from pentimento.domain.fleet import Replica, ReplicaLease, ReplicaReport

logger = logging.getLogger(__name__)


class FleetRegistry(Protocol):
    """The part of `ControllerClient` that a replica talks to. Every method raises `PentimentoError`s."""

    async def register(self, replica: Replica) -> ReplicaLease:
        """Register the replica and return its lease."""
        ...

    async def report(self, report: ReplicaReport) -> object:
        """Send a heartbeat. NotFound asks the replica to register
        anew."""
        ...

    async def deregister(self, instance_id: str, generation: int) -> None:
        """Take the replica out of the fleet."""
        ...


@dataclass(frozen=True)
class RegistrationTiming:
    """Times of a registration, in seconds. The interval of the reports comes from the controller, kept within the two
    limits here."""

    retries: Backoff = Backoff(first_s=0.1, max_s=2.0)
    call_timeout_s: float = 1.0
    close_timeout_s: float = 2.0
    min_interval_s: float = 0.05
    max_interval_s: float = 10.0
    default_interval_s: float = 1.0


def generation_at(clock: Clock) -> int:
    """Return wall milliseconds at the start of a process, which grow from start to start of an instance without any
    state."""
    return int(clock.wall() * 1000)


def _nothing() -> None:
    return


@dataclass(frozen=True)
class RegistrationNews:
    """Who is told on the event loop that the controller took the replica in, and that it answered a report."""

    registered: Callable[[], None] = _nothing
    answered: Callable[[], None] = _nothing


NO_NEWS = RegistrationNews()


class Registration:
    """One replica's place in the fleet. `replica` and `report` are asked anew for every call, on the event loop."""

    def __init__(
        self,
        controller: FleetRegistry,
        replica: Callable[[], Replica],
        report: Callable[[], ReplicaReport],
        *,
        news: RegistrationNews = NO_NEWS,
        timing: RegistrationTiming = RegistrationTiming(),
        random_source: random.Random | None = None,
    ) -> None:
        self._controller = controller
        self._replica = replica
        self._report = report
        self._news = news
        self._timing = timing
        self._random = random_source or random.Random()
        self._lease: ReplicaLease | None = None
        self._known_as: tuple[str, int] | None = None
        # What the controller knows of the replica that no report tells.
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
        """Send the next report now instead of at its turn."""
        self._wake.set()

    async def close(self) -> None:
        """Stop reporting and deregister. Takes at most `close_timeout_s`; the lease ends what could not be said."""
        self._closed = True
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        if self._known_as is None:
            return
        instance_id, generation = self._known_as
        self._known_as = self._lease = None
        try:
            async with asyncio.timeout(self._timing.close_timeout_s):
                await self._controller.deregister(instance_id, generation)
        except Exception as error:  # nothing is lost: the lease runs out by itself
            logger.info("could not deregister (%s: %s)", type(error).__name__, error)

    async def _keep_registered(self) -> None:
        while True:
            await self._attempt(self._beat)
            await self._pause(self._delay_s())

    async def _attempt(self, call: Callable[[], Awaitable[None]]) -> None:
        """One call; a failure of any kind is counted and logged once per outage, never raised."""
        try:
            async with asyncio.timeout(self._timing.call_timeout_s):
                await call()
        except Exception as error:  # whatever it is, the service goes on and so does the next attempt
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
            # A restarted controller does not know us, or another start of this instance took our place.
            self._lease = None
            await self._register()
        else:
            self._news.answered()

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures > 1:
            return
        if isinstance(error, FailedPrecondition):
            # Another live process has the identity: nobody is sent here until this one has its own.
            logger.error("the controller rejects this replica (%s): %s", error.reason, error.message)
        elif isinstance(error, PentimentoError | TimeoutError):
            logger.warning("controller cannot be reached (%s: %s); serving continues", type(error).__name__, error)
        else:
            logger.exception("registration failed; serving on")

    def _delay_s(self) -> float:
        if self._failures:
            return self._timing.retries.random_delay_s(self._failures, self._random)
        return report_interval_s(self._lease, self._timing)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()


def report_interval_s(lease: ReplicaLease | None, timing: RegistrationTiming) -> float:
    """Return the seconds between reports that the lease asks for, unless it is nonsense: at least two reports a lease,
    within our own limits."""
    if lease is None or not _is_positive(lease.report_interval_ms) or not _is_positive(lease.lease_ms):
        return timing.default_interval_s
    asked_s = min(lease.report_interval_ms, lease.lease_ms / 2) / 1000
    return min(max(asked_s, timing.min_interval_s), timing.max_interval_s)


def _unreported(replica: Replica) -> Replica:
    # LoRAs come and go with every picture; whoever paints with them is told with the credits.
    return replace(replica, resident_models=(), held_model_digest="", adapters=())


def _is_positive(value: float) -> bool:
    # NaN compares false with everything.
    return 0 < value < float("inf")
