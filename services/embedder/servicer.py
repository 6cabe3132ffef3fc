"""Serve pentimento.api.embedder.v1."""

from typing import Any

import grpc.aio

from pentimento.api.embedder.v1 import embedder_service_pb2 as pb
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import EmbedderServiceServicer
from pentimento.domain.embedding import Space
from pentimento.wire.codec import nested
from services.embedder.embedder import Embedder

Context = grpc.aio.ServicerContext[Any, Any]
FULL_NAME = pb.DESCRIPTOR.services_by_name["EmbedderService"].full_name


class EmbedderServicer(EmbedderServiceServicer):
    def __init__(self, embedder: Embedder, space: Space) -> None:
        self._embedder = embedder
        self._space = space

    async def EmbedText(self, request: pb.EmbedTextRequest, context: Context) -> pb.EmbedTextResponse:
        embeddings = await self._embedder.embed_texts(request.texts, request.memo_partition)
        return pb.EmbedTextResponse(embeddings=[nested(embedding, pb.Embedding) for embedding in embeddings])

    async def EmbedImage(self, request: pb.EmbedImageRequest, context: Context) -> pb.EmbedImageResponse:
        embeddings = await self._embedder.embed_images(request.images, request.memo_partition)
        return pb.EmbedImageResponse(embeddings=[nested(embedding, pb.Embedding) for embedding in embeddings])

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        ready = self._embedder.ready()
        model, thread, memo = ready.model, ready.thread, ready.memo
        return pb.GetInfoResponse(
            encoder_name=model.name,
            encoder_digest=model.digest,
            dimension_count=model.encoder.dimension_count,
            memo_hit_count=memo.hit_count,
            memo_miss_count=memo.miss_count,
            # Memo hits are in no batch.
            mean_batch_size=thread.item_count / thread.batch_count if thread.batch_count else 0.0,
            embeds_images=model.images is not None,
            space=self._space.value,
        )
