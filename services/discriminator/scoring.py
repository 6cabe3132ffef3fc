"""What scores pictures, transport-neutral."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pentimento.domain.errors import InvalidArgument


@dataclass(frozen=True)
class PictureScores:
    """The softmax of 'real', 0..1, of each picture, and the digest of the discriminator that gave them."""

    confidences: Sequence[float]
    digest: str


class ImageScorer(Protocol):
    """On the event loop only."""

    @property
    def cascades(self) -> tuple[str, ...]:
        """Whose pictures it scores, in the form `light>heavy`; empty where it scores any."""
        ...

    async def open(self) -> None:
        """Get ready to score."""
        ...

    async def close(self) -> None:
        """End what was taken."""
        ...

    async def score(self, cascade: str, images: Sequence[bytes]) -> PictureScores:
        """Raises InvalidArgument, naming the picture, for one it cannot score, and NotFound for an unknown cascade."""
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
    """PictureScores within limits, and counts."""

    scorer: ImageScorer
    limits: ScoreLimits
    scored_count: int = 0
    draining: bool = False

    async def score(self, cascade: str, images: Sequence[bytes]) -> PictureScores:
        """Raises InvalidArgument, naming the field, for pictures outside the limits or that cannot be scored."""
        self.limits.check(images)
        scores = await self.scorer.score(cascade, images)
        self.scored_count += len(scores.confidences)
        return scores
