"""pentimento.api.embedder.v1 over the embedder."""

import grpc.aio

from pentimento.api.embedder.v1 import embedder_service_pb2 as pb
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import EmbedderServiceServicer
from pentimento.wire.codec import encode, nested
from services.embedder.embedder import Embedder

FULL_NAME = pb.DESCRIPTOR.services_by_name["EmbedderService"].full_name


class EmbedderServicer(EmbedderServiceServicer):
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def EmbedText(
        self, request: pb.EmbedTextRequest, context: grpc.aio.ServicerContext[pb.EmbedTextRequest, pb.EmbedTextResponse]
    ) -> pb.EmbedTextResponse:
        embeddings = await self._embedder.embed_texts(request.texts, request.memo_partition)
        return pb.EmbedTextResponse(embeddings=[nested(embedding, pb.Embedding) for embedding in embeddings])

    async def EmbedImage(
        self,
        request: pb.EmbedImageRequest,
        context: grpc.aio.ServicerContext[pb.EmbedImageRequest, pb.EmbedImageResponse],
    ) -> pb.EmbedImageResponse:
        embeddings = await self._embedder.embed_images(request.images, request.memo_partition)
        return pb.EmbedImageResponse(embeddings=[nested(embedding, pb.Embedding) for embedding in embeddings])

    async def GetInfo(
        self, request: pb.GetInfoRequest, context: grpc.aio.ServicerContext[pb.GetInfoRequest, pb.GetInfoResponse]
    ) -> pb.GetInfoResponse:
        return encode(self._embedder.info(), pb.GetInfoResponse)
