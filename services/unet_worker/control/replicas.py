"""Where ControlNets are served: channels to the replicas, kept for as long as the process lives."""

from collections.abc import Callable, Sequence

import grpc.aio

from pentimento.clients.controlnet import ControlNetClient
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import Unavailable
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.generation import ControlNetSelection
from pentimento.domain.reasons import Reason
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.tensors.regions import RegionDirectory
from services.unet_worker.control.answers import summed_answers

Summing = Callable[[Sequence[ReceivedTensors]], ControlResiduals]


class ControlNetReplicas:
    """On the event loop only. `summing` makes the residuals of a step of what its ControlNets answered."""

    def __init__(
        self,
        open_channel: Callable[[str], grpc.aio.Channel],
        directory: RegionDirectory | None,
        summing: Summing = summed_answers,
    ) -> None:
        self.summing = summing
        self._open_channel = open_channel
        self._directory = directory
        self._clients: dict[str, ControlNetClient] = {}

    def client(self, address: str) -> ControlNetClient:
        """Return the client of a replica."""
        if address not in self._clients:
            self._clients[address] = ControlNetClient(self._open_channel(address), self._directory)
        return self._clients[address]


def addresses_of(selection: ControlNetSelection, endpoints: Sequence[ControlNetEndpoint]) -> tuple[str, ...]:
    """Return where a ControlNet is served, in the order in which replicas are to be tried. Raises Unavailable
    (CONTROLNET_LOST) where it is served nowhere."""
    found = tuple(
        endpoint.address
        for endpoint in endpoints
        if endpoint.name == selection.name and endpoint.controlnet_digest in ("", selection.digest)
    )
    if not found:
        raise lost(selection.name)
    return found


def lost(name: str) -> Unavailable:
    """Return the error of a picture whose ControlNet nobody serves now: it is never painted without."""
    message = f"no replica serves the ControlNet {name[:100]!r} now"
    return Unavailable(Reason.CONTROLNET_LOST, message, retry_after_ms=1000)
