"""What reuse does to quality, measured: every prompt of a log is painted from scratch and from the nearest one before.

The log is played against a cache that forgets nothing and holds what was painted from scratch. A prompt's donor of
latents is the nearest prompt before it, text to text (NIRVANA, section 5.1); its donor of an image is the picture
before it that is nearest to its text (MoDM, section 3.2). Quality is CLIPScore, the cosine of picture and prompt (both
papers). Repeats of a prompt, word for word, are left out: what is reused there is the same picture, and no threshold
is needed to find that out. A picture and the one from scratch that it is compared with have the same seed.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.painting import ImageStart, LatentStart, NoiseStart, PaintingRequest
from pentimento.diffusion.reuse_painting import ReusePainter, StudiedPicture
from pentimento.domain.generation import GenerationSpec
from pentimento.policies.selector_profiling import ReuseSample

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]

REPORT_EVERY = 50


class PictureEncoder(Protocol):
    """The dual encoder that the cache searches by."""

    def embed_texts(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors (texts, dimensions)."""
        ...

    def embed_pictures(self, pictures: Sequence[bytes]) -> Vectors:
        """Return unit vectors (pictures, dimensions) of encoded pictures."""
        ...


@dataclass(frozen=True)
class StudyModel:
    """A model that paints, and what its pictures are painted with but for prompt and seed."""

    painter: ReusePainter
    spec: GenerationSpec

    @property
    def step_count(self) -> int:
        """Steps of a picture from scratch."""
        return self.spec.num_inference_steps

    def request(self, prompt: str, seed: int, start: "NoiseStart | LatentStart | ImageStart") -> PaintingRequest:
        """Return what to paint."""
        return PaintingRequest(replace(self.spec, prompt=prompt, seed=seed), start)


@dataclass(frozen=True)
class ReusePair:
    """A prompt and its donor, by their places in the log, with their similarity (cosine)."""

    receiver: int
    donor: int
    similarity: float


@dataclass(frozen=True)
class ReuseOutcome:
    """A pair's picture with K of N steps skipped: its quality and that of the one from scratch."""

    pair: ReusePair
    skipped_steps: int
    quality: float
    scratch_quality: float

    def sample(self) -> ReuseSample:
        """Return it as the rules take it."""
        return ReuseSample(self.pair.similarity, self.quality, self.scratch_quality)


def by_step(outcomes: Iterable[ReuseOutcome]) -> Mapping[int, Sequence[ReuseSample]]:
    """Return the samples by K."""
    found: dict[int, list[ReuseSample]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.skipped_steps, []).append(outcome.sample())
    return found


def nearest_before(
    queries: Vectors, entries: Vectors, prompts: Sequence[str], least_similarity: float
) -> tuple[ReusePair, ...]:
    """Return for each prompt that the log has not had yet its nearest entry among those before it, where that is at
    least `least_similarity` alike."""
    first: dict[str, int] = {}
    pairs = []
    for row, prompt in enumerate(prompts):
        if prompt in first:
            continue
        first[prompt] = row
        if row == 0:
            continue
        cosines = entries[:row] @ queries[row]
        donor = int(np.argmax(cosines))
        if float(cosines[donor]) >= least_similarity:
            pairs.append(ReusePair(row, donor, min(float(cosines[donor]), 1.0)))
    return tuple(pairs)


@dataclass
class ReuseStudy:
    """A log painted from scratch by one model. Painting it takes as long as serving it without a cache."""

    large: StudyModel
    encoder: PictureEncoder
    prompts: Sequence[str]
    kept_steps: tuple[int, ...]  # of the large model's; where latents are captured
    first_seed: int = 0
    texts: Vectors = field(init=False, repr=False)
    images: Vectors = field(init=False, repr=False)
    _pictures: list[StudiedPicture] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.texts = self.encoder.embed_texts(self.prompts)
        requests = [
            replace(self._request(self.large, row, NoiseStart()), capture_steps=frozenset(self.kept_steps))
            for row in range(len(self.prompts))
        ]
        self._pictures = list(told("from scratch", self.large.painter.paint(requests), len(requests)))
        self.images = self.encoder.embed_pictures([picture.png for picture in self._pictures])

    def latent_pairs(self, least_similarity: float) -> tuple[ReusePair, ...]:
        """Return the pairs of latent reuse: nearest text to text."""
        return nearest_before(self.texts, self.texts, self.prompts, least_similarity)

    def image_pairs(self, least_similarity: float) -> tuple[ReusePair, ...]:
        """Return the pairs of image reuse: nearest text to image."""
        return nearest_before(self.texts, self.images, self.prompts, least_similarity)

    def reuse_latents(self, pairs: Sequence[ReusePair], steps: Sequence[int]) -> Iterator[ReuseOutcome]:
        """Yield every pair resumed from its donor's latent at every one of the steps."""
        for step in steps:
            requests = [
                self._request(self.large, pair.receiver, LatentStart(self._latent(pair.donor, step), step))
                for pair in pairs
            ]
            yield from self._outcomes(self.large, pairs, requests, step, f"from latents at {step}")

    def reuse_images(
        self, small: StudyModel, pairs: Sequence[ReusePair], skipped: Sequence[int], step_count: int
    ) -> Iterator[ReuseOutcome]:
        """Yield every pair's donor picture refined by the small model, with each K of `step_count` steps skipped; of
        the small model's own steps that is the same share, rounded down. A K of which nothing is left there is left
        out."""
        for step in skipped:
            first = step * small.step_count // step_count
            if first == 0:
                continue
            requests = [self._refinement(small, pair, first) for pair in pairs]
            yield from self._outcomes(small, pairs, requests, step, f"from images at {step}")

    def _refinement(self, small: StudyModel, pair: ReusePair, first_step: int) -> PaintingRequest:
        spec = small.spec
        pixels = decode_pixels(self._pictures[pair.donor].png, "image", spec.width_px, spec.height_px)
        return self._request(small, pair.receiver, ImageStart(pixels, first_step))

    def _latent(self, row: int, step: int) -> Tensor:
        return self._pictures[row].latents[step]

    def _request(self, model: StudyModel, row: int, start: "NoiseStart | LatentStart | ImageStart") -> PaintingRequest:
        return model.request(self.prompts[row], self.first_seed + row, start)

    def _outcomes(
        self,
        model: StudyModel,
        pairs: Sequence[ReusePair],
        requests: Sequence[PaintingRequest],
        step: int,
        what: str,
    ) -> Iterator[ReuseOutcome]:
        painted = list(told(what, model.painter.paint(requests), len(requests)))
        if not painted:
            return
        images = self.encoder.embed_pictures([picture.png for picture in painted])
        for pair, image in zip(pairs, images, strict=True):
            text = self.texts[pair.receiver]
            scratch = float(self.images[pair.receiver] @ text)
            yield ReuseOutcome(pair, step, float(image @ text), scratch)


def told(what: str, pictures: Iterable[StudiedPicture], count: int) -> Iterator[StudiedPicture]:
    """Yield the pictures, with a line to the log now and then."""
    for number, picture in enumerate(pictures, start=1):
        if number % REPORT_EVERY == 0 or number == count:
            logger.info("%s: %d of %d", what, number, count)
        yield picture
