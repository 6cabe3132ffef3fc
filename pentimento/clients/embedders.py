"""Distribute calls over several equal embedders."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.replicas import ServiceReplicas
from pentimento.domain.embedding import Embedding, Space
from pentimento.domain.errors import FailedPrecondition, PentimentoError, Unavailable
from pentimento.domain.reasons import Reason

logger = logging.getLogger(__name__)

# The plan's embedders; the configured ones come after them.
TRIES = 2
# Callers wait less.
SPACE_TIMEOUT_S = 10.0
EmbedderCall = Callable[[EmbedderClient], Awaitable[tuple[Embedding, ...]]]


class Embedders:
    """Distribute calls over embedders, with the methods of `EmbedderClient`; on the event loop only.

    A call goes to the embedder with the fewest running calls; among equals the same input goes to the same one, which
    may have memoized it. An unavailable embedder is skipped once. An encoder without an image tower gets no second
    image."""

    def __init__(
        self, open_client: Callable[[str], EmbedderClient], configured: Sequence[str], space: Space | None = None
    ) -> None:
        """Start with the `configured` embedders; they are also the fallback if those of `follow` are unavailable.
        `space`: call only configured ones that state it, None: all."""
        self._replicas = ServiceReplicas(open_client)
        self._configured = tuple(configured)
        self._space = space
        # The stated space of each configured embedder that was asked for it and answered.
        self._spaces: dict[str, str] = {}
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

    @property
    def absent(self) -> bool:
        """Return whether each configured embedder has stated another space than this one."""
        return self._space is not None and all(
            self._spaces.get(at, self._space.value) != self._space.value for at in self._configured
        )

    def follow(self, planned: Sequence[str]) -> None:
        """Use these embedders from now on."""
        self._planned = tuple(planned)
        self._replicas.follow((*planned, *self._configured))

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
        def rank(address: str) -> int:
            return crc32(address.encode(), seed)

        def skips(_: str, error: PentimentoError) -> bool:
            return isinstance(error, Unavailable)

        first = self._replicas.least_busy(self._planned, rank)[:TRIES]
        try:
            return await self._replicas.ask(first, call, skips)
        except Unavailable:
            rest = [at for at in await self._configured_ones() if at not in first]
            if not rest:
                raise
            return await self._replicas.ask(self._replicas.least_busy(rest, rank), call, skips)

    async def _configured_ones(self) -> list[str]:
        """Return the configured embedders of this space. While none has stated it, ask those without a statement."""
        space = self._space
        if space is None:
            return list(self._configured)

        def own() -> list[str]:
            return [at for at in self._configured if self._spaces.get(at) == space.value]

        if not own():
            await asyncio.gather(*(self._learn(at) for at in self._configured if at not in self._spaces))
        return own()

    async def _learn(self, address: str) -> None:
        try:
            stated = (await self._replicas.clients[address].info(SPACE_TIMEOUT_S)).space
        except PentimentoError as error:
            logger.info("an embedder states no space", extra={"address": address, "reason": error.reason})
            return
        if stated:
            self._spaces[address] = stated
