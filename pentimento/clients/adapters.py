"""Call the registry of LoRAs."""

from collections.abc import AsyncIterator, Iterable

import grpc.aio

from pentimento.api.adapters.v1 import adapter_registry_service_pb2 as pb
from pentimento.api.adapters.v1.adapter_registry_service_pb2_grpc import AdapterRegistryServiceStub
from pentimento.clients.errors import WrittenCall, answer_of
from pentimento.domain.adapters import Adapter, LoraUpload
from pentimento.wire.codec import decode, nested

CHUNK_BYTES = 1 << 20
# Deadline of an upload: a file of 4 GiB at 10 MB/s.
UPLOAD_TIMEOUT_S = 600.0


class AdapterRegistryClient:
    """Call the controller's registry of LoRAs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AdapterRegistryServiceStub(channel)

    async def add_lora(
        self, upload: LoraUpload, chunks: Iterable[bytes], timeout_s: float = UPLOAD_TIMEOUT_S
    ) -> Adapter:
        """Add a LoRA, with its file in chunks of at most `CHUNK_BYTES`, and return it as served. Raises
        InvalidArgument with field and limit, FailedPrecondition NAME_TAKEN."""

        async def messages() -> AsyncIterator[pb.AddLoraRequest]:
            yield pb.AddLoraRequest(upload=nested(upload, pb.LoraUpload))
            for chunk in chunks:
                yield pb.AddLoraRequest(chunk=chunk)

        call = self._stub.AddLora(messages(), timeout=timeout_s)
        async with WrittenCall(call).domain_errors():
            answer = await call
        return decode(answer.adapter, Adapter)

    async def loras(self, timeout_s: float | None = None) -> tuple[Adapter, ...]:
        """Return the uploaded LoRAs, ordered by name."""
        answer = await answer_of(self._stub.ListLoras, pb.ListLorasRequest(), timeout_s)
        return tuple(decode(adapter, Adapter) for adapter in answer.adapters)

    async def remove_lora(self, name: str, timeout_s: float | None = None) -> None:
        """Remove a LoRA. Raises NotFound."""
        await answer_of(self._stub.RemoveLora, pb.RemoveLoraRequest(name=name), timeout_s)
