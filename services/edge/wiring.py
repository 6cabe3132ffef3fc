"""Puts an edge process together."""

from dataclasses import replace

import grpc.aio

from pentimento.rpc import RpcServer, open_channel
from pentimento.rpc.credentials import ClientCredentials
from pentimento.rpc.settings import RpcChannelSettings
from services.edge.app import edge_app
from services.edge.caller_channels import CallerChannels
from services.edge.history.reader import HistoryReader, SampleRing
from services.edge.http.bodies import BodyBudget
from services.edge.http.listener import HttpListener
from services.edge.parts import EdgeParts
from services.edge.process import EdgeProcess
from services.edge.settings import EdgeSettings


def wire(settings: EdgeSettings) -> EdgeProcess:
    """Call it inside the event loop that the process runs on."""
    credentials = ClientCredentials(settings.channels)
    frontdoor = caller_channels(settings, settings.frontdoor_address, credentials)
    others = {
        name: caller_channels(settings, address, credentials)
        for name, address in (("controller", settings.controller_address), ("gateway", settings.gateway_address))
        if address
    }
    bodies = BodyBudget(settings.http.max_body_bytes, settings.http.max_bodies_bytes)
    history = history_reader(settings)
    parts = EdgeParts(settings, frontdoor, bodies, **others, history=history)
    listener = HttpListener(edge_app(parts), settings.http, settings.rpc)
    called = (frontdoor, *others.values())
    return EdgeProcess(server=RpcServer(settings.rpc, "edge"), listener=listener, called=called, history=history)


def history_reader(settings: EdgeSettings) -> HistoryReader | None:
    """Return what keeps the charts' past, by this process's own token; None where none is to be kept."""
    if not settings.history_samples:
        return None
    frontdoor = open_channel(settings.frontdoor_address, settings.channels)
    controller = open_channel(settings.controller_address, settings.channels) if settings.controller_address else None
    return HistoryReader(SampleRing(settings.history_samples), settings.history_interval_s, frontdoor, controller)


def caller_channels(settings: EdgeSettings, address: str, credentials: ClientCredentials) -> CallerChannels:
    """Return the connections of callers to that service."""
    return CallerChannels(
        lambda token: caller_channel(address, settings.channels, token, credentials),
        settings.max_callers,
        settings.connections_per_caller,
    )


def caller_channel(
    address: str, channels: RpcChannelSettings, token: str | None, credentials: ClientCredentials
) -> grpc.aio.Channel:
    """Open a connection of its own that shows the caller's token, or none; never this process's."""
    settings = replace(channels, service_token_file=None)
    return open_channel(address, settings, token, own_connection=True, credentials=credentials)
