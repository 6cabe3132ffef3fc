"""Client of the embedder."""

from collections.abc import Sequence

import grpc.aio

from pentimento.clients.errors import domain_errors
from pentimento.clients.messages.cache import embedding_from_proto
from pentimento.domain.embedding import Embedding
from pentimento.embedder.v1 import embedder_service_pb2 as pb
from pentimento.embedder.v1.embedder_service_pb2_grpc import EmbedderServiceStub


class EmbedderClient:
    """Text and image embeddings; `timeout_s` None means the channel's default deadline."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EmbedderServiceStub(channel)

    async def embed_text(self, texts: Sequence[str], timeout_s: float | None = None) -> tuple[Embedding, ...]:
        with domain_errors():
            answer = await self._stub.EmbedText(pb.EmbedTextRequest(texts=texts), timeout=timeout_s)
        return tuple(embedding_from_proto(vector, answer.encoder_digest) for vector in answer.embeddings)

    async def embed_image(self, images: Sequence[bytes], timeout_s: float | None = None) -> tuple[Embedding, ...]:
        """`images` are PNG, JPEG or WebP."""
        with domain_errors():
            answer = await self._stub.EmbedImage(pb.EmbedImageRequest(images=images), timeout=timeout_s)
        return tuple(embedding_from_proto(vector, answer.encoder_digest) for vector in answer.embeddings)

    async def info(self, timeout_s: float | None = None) -> pb.GetInfoResponse:
        with domain_errors():
            return await self._stub.GetInfo(pb.GetInfoRequest(), timeout=timeout_s)
