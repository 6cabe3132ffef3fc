"""The life of an edge process."""

import asyncio
from dataclasses import dataclass

from pentimento.service.process import ServiceProcess
from services.edge.caller_channels import CallerChannels
from services.edge.history.reader import HistoryReader
from services.edge.http.listener import HttpListener
from services.edge.readiness import Readiness


@dataclass(kw_only=True)
class EdgeProcess(ServiceProcess):
    listener: HttpListener
    called: tuple[CallerChannels, ...]
    readiness: Readiness
    drain_delay_s: float
    history: HistoryReader | None = None

    async def prepare(self) -> None:
        """Listen for HTTP. The frontdoor may start later: `/ready` reports whether it serves."""
        await self.listener.start()
        if self.history is not None:
            self.run_beside(self.history.run(), "history")

    async def finish(self) -> None:
        """Serve for the drain delay, until load balancers have seen that `/ready` answers 503; then drain. A second
        signal ends both immediately."""
        self.readiness.leave()
        try:
            await asyncio.sleep(self.drain_delay_s)
        except asyncio.CancelledError:
            await self.listener.drain(0.0)
            raise
        await self.listener.drain()

    async def close(self) -> None:
        await self._end_background()
        await self.listener.drain()
        if self.history is not None:
            await self.history.close()
        await self.readiness.close()
        for channels in self.called:
            await channels.close()
