"""A process's place in the fleet: what every service tells the controller alike."""

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
    """The settings by which a service finds its controller, and by which others find the service."""

    @property
    def channels(self) -> RpcChannelSettings:
        """How channels to other processes are opened."""
        ...

    @property
    def controller_address(self) -> str:
        """The controller and its standbys, with commas between them; "" where there is none."""
        ...

    @property
    def advertise_address(self) -> str:
        """Where others reach the service; "" for the address that it listens on, with the host's name for a
        wildcard."""
        ...


def addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a controller and its standbys, which are written with commas between them."""
    return tuple(address for part in text.split(",") if (address := part.strip()))


class FleetMember:
    """One start of a replica. `controller` is None where the settings name none."""

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
        """Return a registration with the controller, None without one. `described` and `reported` add what this kind of
        service says of itself; they are asked anew for every call. `news`: who hears what came of the calls."""
        if self.controller is None:
            return None
        replica, report = (lambda: described(self._replica())), (lambda: reported(self._report()))
        return Registration(self.controller, replica, report, news=news)

    @property
    def address(self) -> str:
        """Return where others reach the service, which listens already."""
        return self._advertise_address or reachable_address(self._server.bound_addresses[0], socket.gethostname())

    def _replica(self) -> Replica:
        return Replica(self._server.instance_id, self._kind, self.address, self.generation)

    def _report(self) -> ReplicaReport:
        return ReplicaReport(self._server.instance_id, self.generation)
