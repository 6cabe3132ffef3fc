"""Serve and make calls: one server factory, one channel factory, and each call's context. Free of torch and numpy.

settings = load_settings(...)                         # holds RpcServerSettings and RpcChannelSettings
server = RpcServer(settings.rpc, "embedder")
server.add(add_EmbedderServiceServicer_to_server, servicer, "pentimento.api.embedder.v1.EmbedderService")
await server.run_until_stopped(warm, drain)
"""

from pentimento.rpc.channel import open_channel
from pentimento.rpc.context import current_caller, current_request_id, detached_context, remaining_s, spawn_detached
from pentimento.rpc.errors import error_from_rpc, to_status
from pentimento.rpc.process import print_found, run_service
from pentimento.rpc.server import RpcServer
from pentimento.rpc.settings import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.tokens import hash_token, new_token, token_entry

__all__ = [
    "RpcChannelSettings",
    "RpcServer",
    "RpcServerSettings",
    "current_caller",
    "current_request_id",
    "detached_context",
    "error_from_rpc",
    "hash_token",
    "new_token",
    "open_channel",
    "print_found",
    "remaining_s",
    "run_service",
    "spawn_detached",
    "to_status",
    "token_entry",
]
