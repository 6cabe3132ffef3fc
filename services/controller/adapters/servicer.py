"""pentimento.api.adapters.v1 over the LoRAs that were uploaded."""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc.aio

from pentimento.api.adapters.v1 import adapter_registry_service_pb2 as pb
from pentimento.api.adapters.v1.adapter_registry_service_pb2_grpc import AdapterRegistryServiceServicer
from pentimento.api.generation.v1 import generation_pb2
from pentimento.domain.adapters import LoraUpload
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.rpc import current_caller
from pentimento.wire.codec import decode, nested

if TYPE_CHECKING:
    # Who needs no ledger starts without its libraries.
    from services.controller.adapters.uploads import UploadedAdapters

FULL_NAME = pb.DESCRIPTOR.services_by_name["AdapterRegistryService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class AdapterRegistryServicer(AdapterRegistryServiceServicer):
    """`uploads` is None where the controller has no ledger or no object store: then nothing can be uploaded.
    `check_leading` raises Unavailable on a standby."""

    def __init__(self, uploads: "UploadedAdapters | None", check_leading: Callable[[], None]) -> None:
        self._uploads = uploads
        self._check_leading = check_leading

    async def AddLora(self, requests: AsyncIterator[pb.AddLoraRequest], context: Context) -> pb.AddLoraResponse:
        uploads = self._served()
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "upload":
            raise InvalidArgument.of("upload", "must come first: what the LoRA is, then its file")
        adapter = await uploads.add(decode(first.upload, LoraUpload), _chunks(requests), current_caller().tenant)
        return pb.AddLoraResponse(adapter=nested(adapter, generation_pb2.Adapter))

    async def ListLoras(self, request: pb.ListLorasRequest, context: Context) -> pb.ListLorasResponse:
        return pb.ListLorasResponse(
            adapters=[nested(adapter, generation_pb2.Adapter) for adapter in self._served().adapters]
        )

    async def RemoveLora(self, request: pb.RemoveLoraRequest, context: Context) -> pb.RemoveLoraResponse:
        await self._served().remove(request.name)
        return pb.RemoveLoraResponse()

    def _served(self) -> "UploadedAdapters":
        self._check_leading()
        if self._uploads is None:
            message = "this controller has no ledger or no object store: LoRAs cannot be uploaded"
            raise FailedPrecondition("NO_UPLOADS", message)
        return self._uploads


async def _chunks(requests: AsyncIterator[pb.AddLoraRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise InvalidArgument.of("chunk", "must be all that follows the first message")
        yield request.chunk
