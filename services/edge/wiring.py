"""Construct an edge process, and run it."""

import asyncio
from dataclasses import dataclass, replace

import grpc.aio

from pentimento.clients.image import ImageClient
from pentimento.rpc import RpcServer, open_channel
from pentimento.rpc.context import EDGE_AGENT
from pentimento.rpc.credentials import ClientCredentials
from pentimento.rpc.settings import RpcChannelSettings
from pentimento.service.process import ServiceProcess, end
from services.edge.app import edge_app
from services.edge.caller_channels import CallerChannels, Introduction
from services.edge.cells import Frontdoors
from services.edge.console.history import HistoryReader
from services.edge.http.bodies import BodyBudget
from services.edge.http.bounded import DEFAULT_LIMITS, HttpLimits
from services.edge.http.listener import HttpListener
from services.edge.parts import EdgeParts, Readiness
from services.edge.settings import LARGEST_BODIES_COUNT, EdgeSettings, drain_delay_of

INTRODUCTION_TIMEOUT_S = 10.0


@dataclass(kw_only=True)
class EdgeProcess(ServiceProcess):
    listener: HttpListener
    called: tuple[CallerChannels | Frontdoors, ...]
    readiness: Readiness
    drain_delay_s: float
    history: HistoryReader

    async def prepare(self) -> None:
        """Listen for HTTP. The frontdoor may start later: `/ready` reports whether it serves."""
        await self.listener.start()
        self.run_beside(self.history.run, "history")

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
        await end(self._background)
        await self.listener.drain()
        await self.history.close()
        await self.readiness.close()
        for channels in self.called:
            await channels.close()


def wire(settings: EdgeSettings, limits: HttpLimits = DEFAULT_LIMITS) -> EdgeProcess:
    """Return an edge process; call this inside its event loop."""
    credentials = ClientCredentials(settings.channels.tls)
    cells, frontdoors = settings.read_cells(), settings.frontdoors
    server = RpcServer(settings.rpc, "edge")
    agent = EDGE_AGENT + server.instance_id

    def called_with(introduce: Introduction, address: str) -> CallerChannels:
        return CallerChannels(
            lambda token: caller_channel(address, settings.channels, token, credentials, agent), introduce
        )

    async def introduce(_: str | None, channel: grpc.aio.Channel) -> None:
        await ImageClient(channel).list_models(INTRODUCTION_TIMEOUT_S)

    async def introduce_to_frontdoor(token: str | None, _: grpc.aio.Channel) -> None:
        """Test a token at the frontdoor first: other services would delay the rejection of an unknown one too."""
        async with frontdoor.channel(token):
            pass

    frontdoor = Frontdoors(cells, {name: called_with(introduce, address) for name, address in frontdoors.items()})
    others = {
        name: called_with(introduce_to_frontdoor, address)
        for name, address in (("controller", settings.controller_address), ("gateway", settings.gateway_address))
        if address
    }
    bodies = BodyBudget(settings.http.max_body_bytes, LARGEST_BODIES_COUNT * settings.http.max_body_bytes)
    history = HistoryReader(
        {name: open_channel(address, settings.channels) for name, address in frontdoors.items()},
        open_channel(settings.controller_address, settings.channels) if settings.controller_address else None,
    )
    readiness = Readiness(
        [caller_channel(address, settings.channels, None, credentials, agent) for address in frontdoors.values()]
    )
    parts = EdgeParts(settings, frontdoor, bodies, readiness, history, **others)
    listener = HttpListener(edge_app(parts), settings.http, settings.rpc, limits)
    called: tuple[CallerChannels | Frontdoors, ...] = (frontdoor, *others.values())
    return EdgeProcess(
        server=server,
        listener=listener,
        called=called,
        readiness=readiness,
        drain_delay_s=drain_delay_of(settings.http, settings.rpc),
        history=history,
    )


def caller_channel(
    address: str, channels: RpcChannelSettings, token: str | None, credentials: ClientCredentials, agent: str
) -> grpc.aio.Channel:
    """Open a separate connection that sends the caller's token, or none; never this process's token. `agent` tells
    the frontdoor which edge calls."""
    settings = replace(channels, service_token_file=None)
    return open_channel(address, settings, token, own_connection=True, credentials=credentials, user_agent=agent)
