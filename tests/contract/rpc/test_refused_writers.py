"""Test that a client refused while it writes receives the reason, as a waiting client does."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from pentimento.api.adapters.v1 import adapter_registry_service_pb2 as adapters
from pentimento.api.adapters.v1 import adapter_registry_service_pb2_grpc as adapters_grpc
from pentimento.api.tensor.v1 import tensor_pb2 as tensor
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.clients.calls import AnsweredStream
from pentimento.clients.controller import CHUNK_BYTES, AdapterRegistryClient
from pentimento.domain.adapters import LoraUpload
from pentimento.domain.errors import FailedPrecondition, PentimentoError, ResourceExhausted
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, open_channel
from tests.contract.rpc.scripted import Scripted, worker_stub

REGISTRY = "pentimento.api.adapters.v1.AdapterRegistryService"
TIMES = 20
UPLOAD = LoraUpload("taken", "sd", "MIT", size_bytes=50 * CHUNK_BYTES, digest="0" * 64)


async def test_refused_stream_receives_reason_and_details(target: Scripted, channel: grpc.aio.Channel) -> None:
    target.worker.refusal = ResourceExhausted("BUSY", "come back later", retry_after_ms=70)

    heard = [await refusal_of(channel) for _ in range(TIMES)]

    assert {(type(error), error.reason, error.retry_after_ms) for error in heard} == {(ResourceExhausted, "BUSY", 70)}


async def refusal_of(channel: grpc.aio.Channel) -> PentimentoError:
    stream = AnsweredStream(worker_stub(channel).PredictHalf(), "PEER_GONE", "the peer")
    with pytest.raises(PentimentoError) as refused:
        for _ in range(1000):
            await stream.send(worker.PredictHalfRequest(chunk=tensor.TensorChunk(data=b"x" * 2**18)))
    return refused.value


class Registry(adapters_grpc.AdapterRegistryServiceServicer):
    async def AddLora(self, requests: AsyncIterator[adapters.AddLoraRequest], context: object) -> None:
        await anext(requests)
        raise FailedPrecondition("NAME_TAKEN", "another LoRA has this name")


async def test_refused_upload_receives_reason(socket_path: Path) -> None:
    server = RpcServer(RpcServerSettings(listen=(f"unix:{socket_path}",)), "registry")
    server.add(adapters_grpc.add_AdapterRegistryServiceServicer_to_server, Registry(), REGISTRY)
    await server.start()
    server.set_serving()
    reasons = set()

    async with open_channel(server.bound_addresses[0], RpcChannelSettings()) as channel:
        for _ in range(TIMES):
            with pytest.raises(PentimentoError) as refused:
                await AdapterRegistryClient(channel).add_lora(UPLOAD, [b"x" * CHUNK_BYTES] * 50, 60.0)
            reasons.add(refused.value.reason)
    await server.stop()

    assert reasons == {"NAME_TAKEN"}
