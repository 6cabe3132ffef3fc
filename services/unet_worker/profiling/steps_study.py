"""Measure the quality of skipped steps: every prompt is generated with all steps, and again with fewer.

An image and the compared full run have the same seed, so that only the skipped steps differ; hits also differ by their
start, images with LoRAs also by the LoRAs' first step. Quality is the score of each scorer: CLIPScore, the
cosine of image and prompt, and others. The scorer that finds the least of the full run's quality decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pentimento.diffusion.painting import LatentStart, NoiseStart, PaintingRequest
from pentimento.diffusion.reuse_painting import StudiedPicture
from pentimento.policies.thinning import ThinningOption, thinned_steps
from pentimento.profiles.rules import ImageSample, strictest
from services.unet_worker.profiling.inputs import ImageEncoder, QualityScorer
from services.unet_worker.profiling.reuse_study import ReusePair, StudyModel

CLIP_SCORE = "clip_score"


class ClipScore:
    """Score images by their cosine with the prompt in a dual encoder."""

    name = CLIP_SCORE

    def __init__(self, encoder: ImageEncoder, prompts: Sequence[str]) -> None:
        self._encoder = encoder
        self._texts = encoder.embed_texts(prompts)

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        """Return the cosines."""
        images = self._encoder.embed_images(pictures)
        return [float(image @ self._texts[row]) for image, row in zip(images, rows, strict=True)]


@dataclass(frozen=True)
class ThinnedBatch:
    """Hold requests to be thinned with the rows of their prompts, and their name in the log."""

    what: str
    rows: Sequence[int]
    requests: Sequence[PaintingRequest]


def grid(step_count: int, begins: Sequence[float], keeps: Sequence[float]) -> Iterator[tuple[int, list[int]]]:
    """Yield each first step with the numbers of steps to try from there on, descending: shares of the schedule, and of
    its remaining steps. No number repeats, and each skips at least one step."""
    for first in dict.fromkeys(int(begin * step_count) for begin in begins):
        rest = step_count - first
        counts = {max(round(keep * rest), 1) for keep in keeps}
        yield first, sorted((count for count in counts if count < rest), reverse=True)


@dataclass
class ThinningStudy:
    """Hold prompts that one model generated in full, row by row; `late` changes a request for its thinned run."""

    model: StudyModel
    scorers: Sequence[QualityScorer]
    full: Sequence[PaintingRequest]
    late: Callable[[PaintingRequest], PaintingRequest] = lambda request: request
    _pictures: list[StudiedPicture] = field(init=False, repr=False)
    _worth: Mapping[str, list[float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._pictures = self.model.generated("all steps", self.full)
        self._worth = self._scored(self._pictures, range(len(self.full)))

    @property
    def batch(self) -> ThinnedBatch:
        """Return the full requests themselves, to be thinned."""
        return ThinnedBatch("", range(len(self.full)), self.full)

    def hits(self, pairs: Sequence[ReusePair], step: int) -> ThinnedBatch:
        """Return the pairs' receivers, each resumed at a captured step of its donor."""
        starts = [LatentStart(self._pictures[pair.donor].latents[step], step) for pair in pairs]
        rows = [pair.receiver for pair in pairs]
        requests = [replace(self.full[row], start=start) for row, start in zip(rows, starts, strict=True)]
        return ThinnedBatch(f"hits at {step}, ", rows, requests)

    def samples(
        self, batch: ThinnedBatch, first_step: int, taken_count: int, spacing: float = 1.0
    ) -> list[ImageSample]:
        """Return a sample for each request, in order, with `taken_count` steps from `first_step` on."""
        steps = thinned_steps(ThinningOption(first_step, taken_count, 0.0, spacing), self.model.step_count)
        late = [self.late(request) for request in batch.requests]
        requests = [replace(request, thinned_steps=steps, capture_steps=frozenset()) for request in late]
        what = f"{batch.what}{taken_count} steps from {first_step} on, spacing {spacing:g}"
        painted = self.model.generated(what, requests)
        found = self._scored(painted, batch.rows)
        return strictest(
            [
                [
                    ImageSample(worth, self._worth[scorer.name][row])
                    for worth, row in zip(found[scorer.name], batch.rows, strict=True)
                ]
                for scorer in self.scorers
            ]
        )

    def _scored(self, pictures: Sequence[StudiedPicture], rows: Sequence[int]) -> Mapping[str, list[float]]:
        files = [picture.png for picture in pictures]
        return {scorer.name: scorer.qualities(files, rows) for scorer in self.scorers}


def full_requests(
    model: StudyModel, prompts: Sequence[str], first_seed: int = 0, capture_steps: Sequence[int] = ()
) -> list[PaintingRequest]:
    """Return the prompts from noise with all steps, each with its own seed."""
    requests = (model.request(prompt, first_seed + row, NoiseStart()) for row, prompt in enumerate(prompts))
    return [replace(request, capture_steps=frozenset(capture_steps)) for request in requests]
