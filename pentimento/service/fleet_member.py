"""Register the process of a service with the controller and report to it."""

import socket
from collections.abc import Callable
from typing import Protocol

from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import NO_NEWS, Registration, RegistrationNews, generation_at
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport
from pentimento.rpc import RpcChannelSettings, RpcServer, open_channel
from pentimento.rpc.settings import reachable_address


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
        return ReplicaReport(self._server.instance_id, self.generation, running_count=self._server.running_count)
