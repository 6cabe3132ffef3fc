"""pentimento.api.embedder.v1 over the embedder."""

import grpc.aio

from pentimento.api.embedder.v1 import embedder_service_pb2 as pb
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import EmbedderServiceServicer
from pentimento.wire.cache import embedding_to_proto
from services.embedder.embedder import Embedder

FULL_NAME = pb.DESCRIPTOR.services_by_name["EmbedderService"].full_name


class EmbedderServicer(EmbedderServiceServicer):
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def EmbedText(
        self, request: pb.EmbedTextRequest, context: grpc.aio.ServicerContext[pb.EmbedTextRequest, pb.EmbedTextResponse]
    ) -> pb.EmbedTextResponse:
        embeddings = await self._embedder.embed_texts(request.texts, request.memo_partition)
        vectors = [embedding_to_proto(embedding) for embedding in embeddings]
        return pb.EmbedTextResponse(embeddings=vectors, encoder_digest=embeddings[0].encoder_digest)

    async def EmbedImage(
        self,
        request: pb.EmbedImageRequest,
        context: grpc.aio.ServicerContext[pb.EmbedImageRequest, pb.EmbedImageResponse],
    ) -> pb.EmbedImageResponse:
        embeddings = await self._embedder.embed_images(request.images, request.memo_partition)
        vectors = [embedding_to_proto(embedding) for embedding in embeddings]
        return pb.EmbedImageResponse(embeddings=vectors, encoder_digest=embeddings[0].encoder_digest)

    async def GetInfo(
        self, request: pb.GetInfoRequest, context: grpc.aio.ServicerContext[pb.GetInfoRequest, pb.GetInfoResponse]
    ) -> pb.GetInfoResponse:
        info = self._embedder.info()
        return pb.GetInfoResponse(
            encoder_name=info.encoder_name,
            encoder_digest=info.encoder_digest,
            dimension_count=info.dimension_count,
            memo_hit_count=info.memo_hit_count,
            memo_miss_count=info.memo_miss_count,
            mean_batch_size=info.mean_batch_size,
            embeds_images=info.embeds_images,
        )
