"""Measure the quality of reuse: every prompt of a log is generated from scratch and from the nearest one before.

The log is replayed against a cache without eviction, filled with the images from scratch. A prompt's donor of latents
is the nearest prompt before it, text to text (NIRVANA, section 5.1); its donor of an image is the earlier image that is
nearest to its text (MoDM, section 3.2). Quality is CLIPScore, the cosine of image and prompt (both papers). Repeats of
a prompt, word for word, are skipped: reuse gives the same image there, and needs no threshold. An image and the
compared one from scratch have the same seed.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart
from pentimento.diffusion.image_generation import BatchGenerator, StudiedImage
from pentimento.diffusion.images import decode_pixels
from pentimento.domain.generation import GenerationSpec
from pentimento.profiles.rules import ImageSample
from services.unet_worker.profiling.inputs import ImageEncoder, Vectors

logger = logging.getLogger(__name__)

REPORT_EVERY = 50


@dataclass(frozen=True)
class StudyModel:
    """Hold a model and the request that all its images share, apart from prompt and seed."""

    generator: BatchGenerator
    spec: GenerationSpec

    @property
    def step_count(self) -> int:
        return self.spec.num_inference_steps

    @property
    def digest(self) -> str:
        return self.generator.model.info.model_digest

    def request(self, prompt: str, seed: int, start: "NoiseStart | LatentStart | ImageStart") -> DenoisingRequest:
        return DenoisingRequest(replace(self.spec, prompt=prompt, seed=seed), start)

    def announce(self, image_steps: int) -> None:
        """Log how long that many denoising steps take here, by a batch of one step after one that warms up."""
        batch = [replace(self.request("", 0, NoiseStart()), thinned_steps=(0,))] * self.generator.max_batch
        for _ in range(2):
            began_s = time.perf_counter()
            list(self.generator.generate(batch))
            seconds = time.perf_counter() - began_s
        minutes = image_steps * seconds / len(batch) / 60.0
        logger.info("%s: at most %d denoising steps, about %.0f min here", self.spec.model, image_steps, minutes)

    def generated(
        self, what: str, requests: Sequence[DenoisingRequest], first: int = 0, total: int | None = None
    ) -> list[StudiedImage]:
        """Return the requests' images in order, with occasional log lines that call them `what`; the requests follow
        `first` others of `total`."""
        found = []
        total = len(requests) if total is None else total
        for count, image in enumerate(self.generator.generate(requests), first + 1):
            found.append(image)
            if count % REPORT_EVERY == 0 or count == total:
                logger.info("%s: %d of at most %d", what, count, total)
        return found


@dataclass(frozen=True)
class ReusePair:
    """Hold a prompt and its donor, by their places in the log, with their similarity (cosine)."""

    receiver: int
    donor: int
    similarity: float


@dataclass(frozen=True)
class ReuseOutcome:
    """Hold the quality of a pair's image with K of N steps skipped, and of the one from scratch."""

    pair: ReusePair
    skipped_steps: int
    quality: float
    scratch_quality: float

    def sample(self) -> ImageSample:
        return ImageSample(self.quality, self.scratch_quality, self.pair.similarity)


def nearest_before(
    queries: Vectors, entries: Vectors, prompts: Sequence[str], least_similarity: float
) -> tuple[ReusePair, ...]:
    """Return for each new prompt of the log its nearest entry before it, if that is similar enough."""
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
    """Hold a log that one model generates from scratch, each prompt when it is first compared or reused."""

    large: StudyModel
    encoder: ImageEncoder
    prompts: Sequence[str]
    kept_steps: tuple[int, ...]  # steps of the large model at which latents are captured
    first_seed: int = 0
    _pictures: dict[int, StudiedImage] = field(default_factory=dict, init=False, repr=False)
    _embedded: dict[int, Vectors] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def texts(self) -> Vectors:
        """Return the vectors of all prompts."""
        return self.encoder.embed_texts(self.prompts)

    @cached_property
    def images(self) -> Vectors:
        """Return the vectors of all images from scratch, which takes as long as serving the log without a cache."""
        self._prepare(range(len(self.prompts)))
        return np.stack([self._embedded[row] for row in range(len(self.prompts))])

    def _prepare(self, rows: Iterable[int]) -> None:
        """Generate these prompts from scratch, if they are not yet."""
        missing = sorted({*rows} - self._pictures.keys())
        if not missing:
            return
        kept = frozenset(self.kept_steps)
        requests = [replace(self._request(self.large, row, NoiseStart()), capture_steps=kept) for row in missing]
        found = self.large.generated("from scratch", requests, len(self._pictures), len(self.prompts))
        self._pictures.update(zip(missing, found, strict=True))
        vectors = self.encoder.embed_images([picture.png for picture in found])
        self._embedded.update(zip(missing, vectors, strict=True))

    def latent_pairs(self, least_similarity: float) -> tuple[ReusePair, ...]:
        """Return the pairs of latent reuse: nearest text to text, the most similar first."""
        return _by_similarity(nearest_before(self.texts, self.texts, self.prompts, least_similarity))

    def image_pairs(self, least_similarity: float) -> tuple[ReusePair, ...]:
        """Return the pairs of image reuse: nearest text to image, the most similar first."""
        return _by_similarity(nearest_before(self.texts, self.images, self.prompts, least_similarity))

    def reuse_latents(self, pairs: Sequence[ReusePair], steps: Sequence[int]) -> Iterator[ReuseOutcome]:
        """Yield every pair resumed from its donor's latent at every one of the steps."""
        for step in steps:

            def resumed(pair: ReusePair, step: int = step) -> DenoisingRequest:
                start = LatentStart(self._pictures[pair.donor].latents[step], step)
                return self._request(self.large, pair.receiver, start)

            yield from self._outcomes(self.large, pairs, resumed, step, f"from latents at {step}")

    def reuse_images(
        self, small: StudyModel, pairs: Sequence[ReusePair], skipped: Sequence[int], step_count: int
    ) -> Iterator[ReuseOutcome]:
        """Yield every pair's donor image refined by the small model, with each K of `step_count` steps skipped.

        The small model skips the same share of its steps, rounded down; a K that rounds to none is skipped.
        """
        for step in skipped:
            first = step * small.step_count // step_count
            if first == 0:
                continue
            refined = partial(self._refinement, small, first)
            yield from self._outcomes(small, pairs, refined, step, f"from images at {step}")

    def _refinement(self, small: StudyModel, first_step: int, pair: ReusePair) -> DenoisingRequest:
        spec = small.spec
        pixels = decode_pixels(self._pictures[pair.donor].png, "image", spec.width_px, spec.height_px)
        return self._request(small, pair.receiver, ImageStart(pixels, first_step))

    def _request(self, model: StudyModel, row: int, start: "NoiseStart | LatentStart | ImageStart") -> DenoisingRequest:
        return model.request(self.prompts[row], self.first_seed + row, start)

    def _outcomes(
        self,
        model: StudyModel,
        pairs: Sequence[ReusePair],
        request_of: Callable[[ReusePair], DenoisingRequest],
        step: int,
        what: str,
    ) -> Iterator[ReuseOutcome]:
        chunk = model.generator.max_batch
        for start in range(0, len(pairs), chunk):
            part = pairs[start : start + chunk]
            self._prepare(row for pair in part for row in (pair.receiver, pair.donor))
            generated = model.generated(what, [request_of(pair) for pair in part], start, len(pairs))
            images = self.encoder.embed_images([picture.png for picture in generated])
            for pair, image in zip(part, images, strict=True):
                text = self.texts[pair.receiver]
                scratch = float(self._embedded[pair.receiver] @ text)
                yield ReuseOutcome(pair, step, float(image @ text), scratch)


def _by_similarity(pairs: Sequence[ReusePair]) -> tuple[ReusePair, ...]:
    return tuple(sorted(pairs, key=lambda pair: -pair.similarity))
