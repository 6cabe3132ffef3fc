"""The life of an edge process."""

from dataclasses import dataclass

from pentimento.service.process import ServiceProcess
from services.edge.caller_channels import CallerChannels
from services.edge.history.reader import HistoryReader
from services.edge.http.listener import HttpListener


@dataclass(kw_only=True)
class EdgeProcess(ServiceProcess):
    listener: HttpListener
    called: tuple[CallerChannels, ...]
    history: HistoryReader | None = None

    async def prepare(self) -> None:
        """Listen for HTTP. That the frontdoor is there is told by `/ready`, not awaited: either may start first."""
        await self.listener.start()
        if self.history is not None:
            self.run_beside(self.history.run(), "history")

    async def finish(self) -> None:
        await self.listener.drain()

    async def close(self) -> None:
        await self._end_background()
        await self.listener.drain()
        if self.history is not None:
            await self.history.close()
        for channels in self.called:
            await channels.close()
