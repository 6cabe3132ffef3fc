"""Call the embedder."""

from collections.abc import Sequence

import grpc.aio

from pentimento.api.embedder.v1 import embedder_service_pb2 as pb
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import EmbedderServiceStub
from pentimento.clients.calls import answer_of
from pentimento.domain.embedding import Embedding
from pentimento.wire.codec import decode


class EmbedderClient:
    """Call an embedder for embeddings of texts and images.

    `timeout_s` None means the channel's default deadline. The embedder memoizes per `memo_partition` (the tenant)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EmbedderServiceStub(channel)

    async def embed_text(
        self, texts: Sequence[str], timeout_s: float | None = None, *, memo_partition: str = ""
    ) -> tuple[Embedding, ...]:
        """Return a vector for each text, in order."""
        request = pb.EmbedTextRequest(texts=texts, memo_partition=memo_partition)
        answer = await answer_of(self._stub.EmbedText, request, timeout_s)
        return tuple(decode(vector, Embedding) for vector in answer.embeddings)

    async def embed_image(
        self, images: Sequence[bytes], timeout_s: float | None = None, *, memo_partition: str = ""
    ) -> tuple[Embedding, ...]:
        """Return a vector for each image, in order; `images` are PNG, JPEG or WebP."""
        request = pb.EmbedImageRequest(images=images, memo_partition=memo_partition)
        answer = await answer_of(self._stub.EmbedImage, request, timeout_s)
        return tuple(decode(vector, Embedding) for vector in answer.embeddings)

    async def info(self, timeout_s: float | None = None) -> pb.GetInfoResponse:
        """Return the embedder's encoder and limits."""
        return await answer_of(self._stub.GetInfo, pb.GetInfoRequest(), timeout_s)
