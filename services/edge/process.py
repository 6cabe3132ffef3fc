"""The life of an edge process."""

from dataclasses import dataclass

from pentimento.service.process import ServiceProcess
from services.edge.caller_channels import CallerChannels
from services.edge.http.listener import HttpListener


@dataclass(kw_only=True)
class EdgeProcess(ServiceProcess):
    listener: HttpListener
    called: tuple[CallerChannels, ...]

    async def prepare(self) -> None:
        """Listen for HTTP. That the frontdoor is there is told by `/ready`, not awaited: either may start first."""
        await self.listener.start()

    async def finish(self) -> None:
        await self.listener.drain()

    async def close(self) -> None:
        await self.listener.drain()
        for channels in self.called:
            await channels.close()
