"""Score images within limits, independent of the transport and of the scorer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.fleet import MeasuredDeferral, ModelCost
from pentimento.domain.foresight import NO_PROMPT_HEAD, PromptForesight

# Limits of one call: images or prompts, and bytes of an image.
MAX_IMAGES, MAX_IMAGE_BYTES = 64, 16 << 20


@dataclass(frozen=True)
class ImageToScore:
    """An encoded image, and its prompt's retrieval embedding if the caller sent it."""

    image: bytes
    prompt: Embedding | None = None


@dataclass(frozen=True)
class Foresights:
    """A prediction per prompt, and the digest of the discriminator that made them."""

    prompts: Sequence[PromptForesight]
    digest: str


@dataclass(frozen=True)
class ImageScores:
    """A confidence 0..1 per image, and the digest of the discriminator that gave them."""

    confidences: Sequence[float]
    digest: str


class ImageScorer(Protocol):
    """A scorer on the event loop. `cascades`, in the form `light>heavy`, are those it scores; empty: any.

    `costs` are the seconds of an image of each cascade, none before `open`. The discriminators of `prompt_cascades`
    read prompts; `deferrals` has f(t) of each.
    """

    @property
    def cascades(self) -> tuple[str, ...]: ...

    @property
    def prompt_cascades(self) -> tuple[str, ...]: ...

    @property
    def deferrals(self) -> tuple[MeasuredDeferral, ...]: ...

    @property
    def costs(self) -> tuple[ModelCost, ...]: ...

    async def open(self) -> None:
        """Load the discriminators."""

    async def close(self) -> None:
        """Finish the accepted images."""

    async def foresee(self, cascade: str, prompts: Sequence[Embedding], threshold: float | None = None) -> Foresights:
        """Raise NotFound for an unknown cascade, FailedPrecondition NO_PROMPT_HEAD if it reads images only."""

    async def score(self, cascade: str, images: Sequence[ImageToScore]) -> ImageScores:
        """Raise InvalidArgument, naming the image, if it cannot be scored; NotFound for an unknown cascade."""


@dataclass
class Discriminator:
    """A scorer behind the limits of one call; counts the scored images. `classifiers`: what the process can check for
    unsafe content."""

    scorer: ImageScorer
    classifiers: tuple[str, ...] = ()
    scored_count: int = 0
    draining: bool = False

    async def foresee(self, cascade: str, prompts: Sequence[Embedding], threshold: float | None = None) -> Foresights:
        """Predict at that confidence threshold, or else the discriminator's own. Raise InvalidArgument for one outside
        0..1, for too many prompts, or an unreadable embedding."""
        self._check_count("prompts", len(prompts))
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise InvalidArgument.of("threshold", f"must be 0 to 1, got {threshold}")
        return await self.scorer.foresee(cascade, prompts, threshold)

    async def score(self, cascade: str, images: Sequence[ImageToScore]) -> ImageScores:
        """Raise InvalidArgument, naming the field, for images outside the limits or that cannot be scored."""
        self._check_count("images", len(images))
        for index, entry in enumerate(images):
            if not 1 <= len(entry.image) <= MAX_IMAGE_BYTES:
                limit = f"must be 1 to {MAX_IMAGE_BYTES} bytes, got {len(entry.image)}"
                raise InvalidArgument.of(f"images[{index}].image", limit)
        scores = await self.scorer.score(cascade, images)
        self.scored_count += len(scores.confidences)
        return scores

    def _check_count(self, field: str, count: int) -> None:
        if not 1 <= count <= MAX_IMAGES:
            raise InvalidArgument.of(field, f"must be 1 to {MAX_IMAGES}, got {count}")


def reads_no_prompts(cascade: str) -> FailedPrecondition:
    """Return the error for prompts of a cascade with a discriminator that reads images only."""
    return FailedPrecondition(NO_PROMPT_HEAD, f"the discriminator of cascade {cascade!r:.120} reads images only")
