"""Distribute calls over several equal embedders."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.replicas import ServiceReplicas
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, Unavailable
from pentimento.domain.reasons import Reason

logger = logging.getLogger(__name__)

# The plan's embedders; the configured one comes after them.
TRIES = 2
EmbedderCall = Callable[[EmbedderClient], Awaitable[tuple[Embedding, ...]]]


class Embedders:
    """Distribute calls over embedders, with the methods of `EmbedderClient`; on the event loop only.

    A call goes to the embedder with the fewest running calls; among equals the same input goes to the same one, which
    may have memoized it. An unavailable embedder is skipped once. An encoder without an image tower gets no second
    image."""

    def __init__(self, open_client: Callable[[str], EmbedderClient], configured: str) -> None:
        """Start with the `configured` embedder; it is also the fallback if those of `follow` are unavailable."""
        self._replicas = ServiceReplicas(open_client)
        self._configured = configured
        self.follow(())
        self._encoder_digest = ""
        self._texts_alone: set[str] = set()

    @property
    def encoder_digest(self) -> str:
        """Return the encoder of the newest text; "" before the first."""
        return self._encoder_digest

    @property
    def embeds_images(self) -> bool:
        """Return False if the encoder is known to embed only texts."""
        return self._encoder_digest not in self._texts_alone

    def follow(self, planned: Sequence[str]) -> None:
        """Use these embedders from now on."""
        self._planned = tuple(planned)
        self._replicas.follow((*planned, self._configured))

    async def embed_text(
        self, texts: Sequence[str], timeout_s: float | None = None, *, memo_partition: str = ""
    ) -> tuple[Embedding, ...]:
        """Return a vector for each text, in order."""
        seed = crc32("\n".join(texts).encode())
        made = await self._ask(seed, lambda client: client.embed_text(texts, timeout_s, memo_partition=memo_partition))
        self._encoder_digest = made[0].encoder_digest if made else self._encoder_digest
        return made

    async def embed_image(
        self, images: Sequence[bytes], timeout_s: float | None = None, *, memo_partition: str = ""
    ) -> tuple[Embedding, ...]:
        """Return a vector for each image, in order; `images` are PNG, JPEG or WebP. Raises FailedPrecondition
        NO_IMAGE_TOWER if the encoder embeds only texts."""
        digest = self._encoder_digest
        if not self.embeds_images:
            raise FailedPrecondition(Reason.NO_IMAGE_TOWER, "the encoder embeds texts only")
        seed = crc32(images[0]) if images else 0
        try:
            return await self._ask(
                seed, lambda client: client.embed_image(images, timeout_s, memo_partition=memo_partition)
            )
        except FailedPrecondition as error:
            if error.reason == Reason.NO_IMAGE_TOWER and digest:
                self._texts_alone.add(digest)
                logger.warning("images are neither stored for reuse nor compared: %s", error.message)
            raise

    async def _ask(self, seed: int, call: EmbedderCall) -> tuple[Embedding, ...]:
        first = self._replicas.least_busy(self._planned, lambda address: crc32(address.encode(), seed))[:TRIES]
        addresses = first if self._configured in first else [*first, self._configured]
        return await self._replicas.ask(addresses, call, lambda _, error: isinstance(error, Unavailable))
