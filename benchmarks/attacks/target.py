"""Describe the target of an attack: the addresses of a suite's processes, and the tokens that the attacker holds."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from pentimento.api.controller.v1 import controller_service_pb2
from pentimento.api.embedder.v1 import embedder_service_pb2
from pentimento.api.frontdoor.v1 import frontdoor_service_pb2
from pentimento.api.image.v1 import image_service_pb2
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2
from pentimento.rpc.channel import KitChannel, authorization_of
from pentimento.rpc.credentials import channel_credentials
from pentimento.rpc.settings import TlsSettings

# counts by answer
Answers = Counter[str]

FRONTDOOR, CONTROLLER, GATEWAY, EMBEDDER = "frontdoor", "controller", "gateway", "embedder"
PUBLIC = "public"
_CONTRACTS = {
    PUBLIC: (image_service_pb2,),
    FRONTDOOR: (image_service_pb2, frontdoor_service_pb2),
    CONTROLLER: (controller_service_pb2,),
    GATEWAY: (vectordb_gateway_service_pb2,),
    EMBEDDER: (embedder_service_pb2,),
}
_WORKER_CONTRACTS = (unet_worker_service_pb2,)
# Without a local pool, a channel shares its connection with all others to the same address.
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
)
UNARY_S = 10.0
# No input should get these; they are reported with their RPC.
_DEFECTS = frozenset({"INTERNAL", "UNKNOWN"})
# grpc.aio raises this when the server ends a stream during a write; the server's status is lost.
_LOST_STATUS = "Internal error from Core"
_TRIES, _WAIT_S = 5, 0.25


@dataclass(frozen=True)
class AttackTarget:
    """Store `addresses` by process (the public API's as "public") and `tokens` by role ("" without one; all "" in open
    mode).

    `http` is the HTTP API's host:port, or "" without one. The attacker may write to `folder`.
    """

    addresses: dict[str, str]
    tokens: dict[str, str]
    tls_ca: str
    folder: str
    http: str = ""

    @classmethod
    def parse(cls, text: str) -> "AttackTarget":
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def public(self) -> str:
        return self.addresses[PUBLIC]

    @property
    def workers(self) -> list[str]:
        return [address for name, address in self.addresses.items() if name not in _CONTRACTS]

    def certificate(self, address: str) -> str:
        """Return the authority that verifies that address, or "" if it uses no TLS."""
        return self.tls_ca if address == self.public else ""

    def methods(self, process: str) -> list[MethodDescriptor]:
        """Return every RPC of that process."""
        contracts = _CONTRACTS.get(process, _WORKER_CONTRACTS)
        services = [service for contract in contracts for service in contract.DESCRIPTOR.services_by_name.values()]
        return [method for service in services for method in service.methods]

    def channel(self, address: str, role: str = "") -> grpc.aio.Channel:
        """Open a separate connection with that role's token, without our keepalive: an attacker does not close it."""
        ca = self.certificate(address)
        credentials = channel_credentials(TlsSettings(Path(ca).parent if ca else None))
        if credentials is None:
            plain = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            plain = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        token = self.tokens.get(role)
        return KitChannel(lambda _: plain, authorization_of(token or None), UNARY_S)


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def identity(data: bytes) -> bytes:
    return data


async def call_with_bytes(channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes, timeout_s: float) -> str:
    """Call with those bytes and return the status. Call again if the caller's library lost it, each time with a longer
    wait before a stream's message, so that a refusal arrives first."""
    for number in range(_TRIES):
        status = await _called_once(channel, method, data, timeout_s, _WAIT_S * number)
        if not status.endswith(_LOST_STATUS):
            break
    return status


async def _after(wait_s: float, data: bytes) -> AsyncIterator[bytes]:
    await asyncio.sleep(wait_s)
    yield data


async def _called_once(
    channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes, timeout_s: float, wait_s: float
) -> str:
    """Call once with those bytes and return the status; a stream's is its end, or OK at its first message."""
    requests = _after(wait_s, data) if method.client_streaming else data
    kinds: dict[tuple[bool, bool], Callable[..., Any]] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    start = kinds[method.client_streaming, method.server_streaming](path_of(method), identity, identity)
    call = start(requests, timeout=timeout_s)
    try:
        if method.server_streaming:
            await call.read()
            return str((await call.code()).name) if call.done() else "OK"
        await call
        return "OK"
    except grpc.aio.AioRpcError as error:
        status = str(error.code().name)
        return f"{status} from {path_of(method)}: {error.details()}" if status in _DEFECTS else status
    finally:
        call.cancel()


def counted(answers: Sequence[str]) -> Answers:
    return Counter(answers)
