"""What leaving out steps does to quality, measured: every prompt is painted with all steps, and again with fewer.

A picture and the full run that it is compared with have the same seed, so that they differ by what was left out alone;
of hits by where they start, too, and of pictures with LoRAs by how late these come. Quality is what judges say:
CLIPScore, the cosine of picture and prompt, and whoever stands beside it. A picture is worth what the strictest of them
finds left of its full run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pentimento.diffusion.painting import LatentStart, NoiseStart, PaintingRequest
from pentimento.diffusion.reuse_painting import StudiedPicture
from pentimento.policies.thinning import ThinningOption, thinned_steps
from pentimento.policies.thinning_profiling import ThinnedSample, strictest
from services.unet_worker.models.reuse_study import PictureEncoder, ReusePair, StudyModel, told

CLIP_SCORE = "clip_score"


class QualityJudge(Protocol):
    """Says what pictures are worth; higher is better."""

    @property
    def name(self) -> str:
        """What profiles call its measure."""
        ...

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        """Return the worth of encoded pictures, each painted from the prompt of its row."""
        ...


class ClipScore:
    """The cosine of a picture and its prompt by a dual encoder."""

    name = CLIP_SCORE

    def __init__(self, encoder: PictureEncoder, prompts: Sequence[str]) -> None:
        self._encoder = encoder
        self._texts = encoder.embed_texts(prompts)

    def qualities(self, pictures: Sequence[bytes], rows: Sequence[int]) -> list[float]:
        """Return the cosines."""
        images = self._encoder.embed_pictures(pictures)
        return [float(image @ self._texts[row]) for image, row in zip(images, rows, strict=True)]


@dataclass(frozen=True)
class ThinnedBatch:
    """What is thinned: requests with the rows of their prompts; `what` the log calls them."""

    what: str
    rows: Sequence[int]
    requests: Sequence[PaintingRequest]


def grid(step_count: int, begins: Sequence[float], keeps: Sequence[float]) -> Iterator[tuple[int, list[int]]]:
    """Yield each first step with the numbers of steps to try from there on, descending: shares of the schedule, and of
    what remains of it there. No number is tried twice, and none that leaves nothing out."""
    for first in dict.fromkeys(int(begin * step_count) for begin in begins):
        rest = step_count - first
        counts = {max(round(keep * rest), 1) for keep in keeps}
        yield first, sorted((count for count in counts if count < rest), reverse=True)


@dataclass
class ThinningStudy:
    """Prompts painted in full by one model: `full` are the requests, row by row; `late` makes one as it is thinned."""

    model: StudyModel
    judges: Sequence[QualityJudge]
    full: Sequence[PaintingRequest]
    late: Callable[[PaintingRequest], PaintingRequest] = lambda request: request
    _pictures: list[StudiedPicture] = field(init=False, repr=False)
    _worth: Mapping[str, list[float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._pictures = self._painted("all steps", self.full)
        self._worth = self._judged(self._pictures, range(len(self.full)))

    @property
    def batch(self) -> ThinnedBatch:
        """The full requests themselves, to be thinned."""
        return ThinnedBatch("", range(len(self.full)), self.full)

    def hits(self, pairs: Sequence[ReusePair], step: int) -> ThinnedBatch:
        """Return the pairs' receivers, each resumed at a captured step of its donor."""
        starts = [LatentStart(self._pictures[pair.donor].latents[step], step) for pair in pairs]
        rows = [pair.receiver for pair in pairs]
        requests = [replace(self.full[row], start=start) for row, start in zip(rows, starts, strict=True)]
        return ThinnedBatch(f"hits at {step}, ", rows, requests)

    def samples(
        self, batch: ThinnedBatch, first_step: int, taken_count: int, spacing: float = 1.0
    ) -> list[ThinnedSample]:
        """Return a sample a request, in their order: painted with so many steps from `first_step` on."""
        steps = thinned_steps(ThinningOption(first_step, taken_count, 0.0, spacing), self.model.step_count)
        late = [self.late(request) for request in batch.requests]
        requests = [replace(request, thinned_steps=steps, capture_steps=frozenset()) for request in late]
        painted = self._painted(f"{batch.what}{taken_count} steps from {first_step} on, spacing {spacing:g}", requests)
        found = self._judged(painted, batch.rows)
        return strictest(
            [
                [
                    ThinnedSample(worth, self._worth[judge.name][row])
                    for worth, row in zip(found[judge.name], batch.rows, strict=True)
                ]
                for judge in self.judges
            ]
        )

    def _judged(self, pictures: Sequence[StudiedPicture], rows: Sequence[int]) -> Mapping[str, list[float]]:
        files = [picture.png for picture in pictures]
        return {judge.name: judge.qualities(files, rows) for judge in self.judges}

    def _painted(self, what: str, requests: Sequence[PaintingRequest]) -> list[StudiedPicture]:
        return list(told(what, self.model.painter.paint(requests), len(requests)))


def full_requests(
    model: StudyModel, prompts: Sequence[str], first_seed: int = 0, capture_steps: Sequence[int] = ()
) -> list[PaintingRequest]:
    """Return the prompts from noise with all steps, each with a seed of its own."""
    requests = (model.request(prompt, first_seed + row, NoiseStart()) for row, prompt in enumerate(prompts))
    return [replace(request, capture_steps=frozenset(capture_steps)) for request in requests]
