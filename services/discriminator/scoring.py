"""What scores pictures, transport-neutral."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.fleet import ModelCost
from pentimento.domain.foresight import PromptForesight


@dataclass(frozen=True)
class PictureToScore:
    """An encoded picture, and its prompt's retrieval embedding where the caller sent it."""

    image: bytes
    prompt: Embedding | None = None


@dataclass(frozen=True)
class Foresights:
    """What each prompt tells by itself, and the digest of the discriminator that says so."""

    prompts: Sequence[PromptForesight]
    digest: str


@dataclass(frozen=True)
class PictureScores:
    """The confidence 0..1 in each picture, and the digest of the discriminator that gave them."""

    confidences: Sequence[float]
    digest: str


class ImageScorer(Protocol):
    """On the event loop only."""

    @property
    def cascades(self) -> tuple[str, ...]:
        """Whose pictures it scores, in the form `light>heavy`; empty where it scores any."""
        ...

    @property
    def costs(self) -> tuple[ModelCost, ...]:
        """What scoring a picture of each cascade takes; none before that is measured, or where nobody measures."""
        ...

    async def open(self) -> None:
        """Get ready to score."""
        ...

    async def close(self) -> None:
        """End what was taken."""
        ...

    @property
    def prompt_cascades(self) -> tuple[str, ...]:
        """Those whose discriminators read prompts."""
        ...

    async def foresee(self, cascade: str, prompts: Sequence[Embedding]) -> Foresights:
        """Raises NotFound for an unknown cascade, and FailedPrecondition NO_PROMPT_HEAD for one whose discriminator
        reads images only."""
        ...

    async def score(self, cascade: str, images: Sequence[PictureToScore]) -> PictureScores:
        """Raises InvalidArgument, naming the picture, for one it cannot score, and NotFound for an unknown cascade."""
        ...


@dataclass(frozen=True)
class ScoreLimits:
    max_images: int
    max_image_bytes: int

    def check(self, images: Sequence[PictureToScore]) -> None:
        """Raises InvalidArgument before anything is scored."""
        self.check_count("images", len(images))
        for index, entry in enumerate(images):
            if not 1 <= len(entry.image) <= self.max_image_bytes:
                limit = f"must be 1 to {self.max_image_bytes} bytes, got {len(entry.image)}"
                raise InvalidArgument.of(f"images[{index}].image", limit)

    def check_count(self, field: str, count: int) -> None:
        """Raises InvalidArgument for none, or for more than one call may have."""
        if not 1 <= count <= self.max_images:
            raise InvalidArgument.of(field, f"must be 1 to {self.max_images}, got {count}")


@dataclass
class Discriminator:
    """PictureScores within limits, and counts."""

    scorer: ImageScorer
    limits: ScoreLimits
    scored_count: int = 0
    draining: bool = False

    async def foresee(self, cascade: str, prompts: Sequence[Embedding]) -> Foresights:
        """Raises InvalidArgument for too many prompts, or an embedding that cannot be read."""
        self.limits.check_count("prompts", len(prompts))
        return await self.scorer.foresee(cascade, prompts)

    async def score(self, cascade: str, images: Sequence[PictureToScore]) -> PictureScores:
        """Raises InvalidArgument, naming the field, for pictures outside the limits or that cannot be scored."""
        self.limits.check(images)
        scores = await self.scorer.score(cascade, images)
        self.scored_count += len(scores.confidences)
        return scores


def reads_no_prompts(cascade: str) -> FailedPrecondition:
    """Return what is raised where a prompt is to be judged by a discriminator of pictures."""
    return FailedPrecondition("NO_PROMPT_HEAD", f"the discriminator of cascade {cascade!r:.120} reads images only")
