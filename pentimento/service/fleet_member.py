"""Register the process of a service with the controller, report to it, and receive plans: each newer one is passed on;
without a controller the last one stays in force."""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.clients.controller import NO_NEWS, ControllerClient, Registration, RegistrationNews, generation_at
from pentimento.domain.clock import Backoff, Clock, SystemClock, latest_believable
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.fleet import Plan, Replica, ReplicaKind, ReplicaReport
from pentimento.rpc import RpcChannelSettings, RpcServer, open_channel
from pentimento.rpc.settings import reachable_address
from pentimento.settings import SettingsError
from pentimento.wire.codec import from_bytes, to_bytes

logger = logging.getLogger(__name__)


class FleetSettings(Protocol):
    """Describe the settings with the addresses of the controller and of the service itself."""

    @property
    def channels(self) -> RpcChannelSettings:
        """Return the settings of channels to other processes."""

    @property
    def controller_address(self) -> str:
        """Return the addresses of the controller and its standbys, separated by commas; "" for none."""

    @property
    def advertise_address(self) -> str:
        """Return the address at which others reach the service; "" for the address that it listens on, with the host's
        name for a wildcard."""


def addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a controller and its standbys, from a text separated by commas."""
    return tuple(address for part in text.split(",") if (address := part.strip()))


class FleetMember:
    """Represent one start of a replica. `controller` is None if the settings name none."""

    def __init__(self, server: RpcServer, kind: ReplicaKind, settings: FleetSettings) -> None:
        self._server = server
        self._kind = kind
        self._advertise_address = settings.advertise_address
        self.generation = generation_at(SystemClock())
        channels = [open_channel(address, settings.channels) for address in addresses(settings.controller_address)]
        self.controller = ControllerClient(*channels) if channels else None

    def registration(
        self,
        described: Callable[[Replica], Replica] = lambda replica: replica,
        reported: Callable[[ReplicaReport], ReplicaReport] = lambda report: report,
        news: RegistrationNews = NO_NEWS,
    ) -> Registration | None:
        """Return a registration with the controller, None without one. `described` and `reported` add the facts of this
        kind of service; every call runs them again. `news` receives the results of the calls."""
        if self.controller is None:
            return None
        replica, report = (lambda: described(self._replica())), (lambda: reported(self._report()))
        return Registration(self.controller, replica, report, news=news)

    @property
    def address(self) -> str:
        """Return the address at which others reach the service, which must be listening."""
        return self._advertise_address or reachable_address(self._server.bound_addresses[0], socket.gethostname())

    def _replica(self) -> Replica:
        return Replica(self._server.instance_id, self._kind, self.address, self.generation)

    def _report(self) -> ReplicaReport:
        edges = self._server.edges
        return ReplicaReport(
            self._server.instance_id,
            self.generation,
            running_count=self._server.running_count,
            edge_count=edges.count,
            edge_call_count=edges.running_count,
        )


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
