"""What scores pictures, transport-neutral."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pentimento.domain.errors import InvalidArgument


class ImageScorer(Protocol):
    """On the event loop only."""

    @property
    def digest(self) -> str:
        """Of the discriminator that the confidences are of."""
        ...

    async def score(self, images: Sequence[bytes]) -> list[float]:
        """Softmax of 'real' for each, 0..1. Raises InvalidArgument, naming the picture, for one it cannot score."""
        ...


@dataclass(frozen=True)
class ScoreLimits:
    max_images: int
    max_image_bytes: int

    def check(self, images: Sequence[bytes]) -> None:
        """Raises InvalidArgument before anything is scored."""
        if not 1 <= len(images) <= self.max_images:
            raise InvalidArgument.of("images", f"must be 1 to {self.max_images}, got {len(images)}")
        for index, image in enumerate(images):
            if not 1 <= len(image) <= self.max_image_bytes:
                limit = f"must be 1 to {self.max_image_bytes} bytes, got {len(image)}"
                raise InvalidArgument.of(f"images[{index}].image", limit)


@dataclass
class Discriminator:
    """Scores within limits, and counts."""

    scorer: ImageScorer
    limits: ScoreLimits
    scored_count: int = 0
    draining: bool = False

    async def score(self, images: Sequence[bytes]) -> list[float]:
        """Raises InvalidArgument, naming the field, for pictures outside the limits or that cannot be scored."""
        self.limits.check(images)
        confidences = await self.scorer.score(images)
        self.scored_count += len(confidences)
        return confidences
