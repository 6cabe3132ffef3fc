"""Embed prompts for lookups and discriminators, and images for the cache."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pentimento.clients.embedders import Embedders
from pentimento.domain.embedding import Embedding, PromptEmbedding
from pentimento.domain.fleet import ReplicaKind, ServiceEndpoint
from pentimento.domain.image_request import ResolvedRequest
from services.frontdoor.routing.bounded_calls import IMAGE_REUSE, Note, bounded

# Seconds that a request waits for its prompt's embedding, times the wait factor.
EMBED_S = 0.25


@dataclass(frozen=True)
class PromptEmbedder:
    """Call the embedders. `image_encoders` embed images, and prompts to find them; None, or absent, if `texts` does.
    Both are None if no embedder is configured. `searched`: there is a cache to search. `wait_factor` multiplies the
    waits for parts that requests can do without."""

    texts: Embedders | None
    image_encoders: Embedders | None
    searched: bool
    wait_factor: float

    @property
    def embeds_images(self) -> bool:
        return self.images is not None and self.images.embeds_images

    @property
    def images(self) -> Embedders | None:
        return self._own_images or self.texts

    @property
    def _own_images(self) -> Embedders | None:
        """Return the images' own encoder; None if they have the one of texts."""
        own = self.image_encoders
        return None if own is None or own.absent else own

    def follow(self, endpoints: Sequence[ServiceEndpoint]) -> None:
        """Call the plan's embedders in addition to the configured ones."""
        for kind, embedders in ((ReplicaKind.EMBEDDER, self.texts), (ReplicaKind.IMAGE_EMBEDDER, self._own_images)):
            if embedders is not None:
                embedders.follow(tuple(endpoint.address for endpoint in endpoints if endpoint.kind is kind))

    def are_searched(self, resolved: ResolvedRequest) -> bool:
        return self.searched and resolved.cacheable

    async def embed(
        self, tenant: str, resolved: ResolvedRequest, note: Note, *, scored: bool
    ) -> PromptEmbedding | None:
        """Return the prompt's embedding; None with a note if cache or discriminator must do without it. Without that of
        another encoder of images no image is found.

        `scored`: whether a discriminator may score the image.
        """
        is_searched = self.are_searched(resolved)
        if not (scored or is_searched):
            return None
        prompts, timeout_s = [resolved.spec.plain_prompt], EMBED_S * self.wait_factor

        async def by(embedders: Embedders | None, part: str, loses: str) -> Embedding | None:
            if embedders is None:
                return None
            call = embedders.embed_text(prompts, timeout_s, memo_partition=tenant)
            answer = await bounded(part, timeout_s, call, note, loses=loses)
            return answer[0] if answer else None

        text, image = await asyncio.gather(
            by(self.texts, "embedder", "cache" if is_searched else "prompt's embedding"),
            by(self._own_images, "image_embedder", IMAGE_REUSE),
        )
        return None if text is None else PromptEmbedding(text, image)

    def scored(self, embedding: PromptEmbedding | None) -> Embedding | None:
        """Return the vector by the encoder of images, which discriminators were trained with; None without it."""
        if embedding is None:
            return None
        return embedding.text if self._own_images is None else embedding.image

    async def embed_image(self, tenant: str, image: bytes, timeout_s: float) -> Embedding | None:
        """Return the image's embedding; None without an answer in time."""
        if self.images is None:
            return None
        call = self.images.embed_image([image], timeout_s, memo_partition=tenant)
        part = "embedder" if self._own_images is None else "image_embedder"
        answer = await bounded(part, timeout_s, call)
        return answer[0] if answer else None
