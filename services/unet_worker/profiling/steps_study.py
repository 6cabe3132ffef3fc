"""Measure the quality of skipped steps, or of steps that reuse deep features: every prompt is generated with all steps
in full, and again with fewer.

An image and the compared full run have the same seed, so that only those steps differ; hits also differ by their
start, images with LoRAs also by the LoRAs' first step. Quality is the score of each scorer: CLIPScore, the
cosine of image and prompt, and others. The scorer that finds the least of the full run's quality decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.image_generation import StudiedImage
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.cache_selection import AS_STORED, Renoising
from pentimento.policies.thinning import ThinningOption, thinned_steps
from pentimento.profiles.rules import ImageSample, is_settled, strictest, tally
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
        images = self._encoder.embed_images(pictures)
        return [float(image @ self._texts[row]) for image, row in zip(images, rows, strict=True)]


def names(scorers: Sequence[QualityScorer]) -> str:
    return " and ".join(scorer.name for scorer in scorers)


@dataclass(frozen=True)
class ThinnedBatch:
    """Hold requests to be thinned with the rows of their prompts, and their name in the log."""

    what: str
    rows: Sequence[int]
    requests: Sequence[DenoisingRequest]


def grid(step_count: int, begins: Sequence[float], keeps: Sequence[float]) -> Iterator[tuple[int, list[int]]]:
    """Yield each first step with the numbers of steps to try from there on, descending: shares of the schedule, and of
    its remaining steps. No number repeats, and each skips at least one step."""
    for first in dict.fromkeys(int(begin * step_count) for begin in begins):
        rest = step_count - first
        counts = {max(round(keep * rest), 1) for keep in keeps}
        yield first, sorted((count for count in counts if count < rest), reverse=True)


def next_place(holds: Mapping[int, bool], count: int, guess: int | None) -> int | None:
    """Return the next of `count` places to try after the results `holds`; None once the last that holds is known.

    Places hold up to one and not beyond. The first one tried is `guess`, then its neighbour, then the middle of the
    rest; without a guess they are tried in their order.
    """
    low = max((place for place, held in holds.items() if held), default=-1)
    high = min((place for place, held in holds.items() if not held), default=count)
    if high - low <= 1:
        return None
    if guess is None:
        return low + 1
    if not holds:
        return min(guess, count - 1)
    if len(holds) == 1:
        return low + 1 if low >= 0 else high - 1
    return (low + high) // 2


def most_tried(step_counts: Sequence[int], *, exhaustive: bool) -> int:
    """Return the most steps in all that places with those numbers of steps take until the last that holds is known."""
    tried = len(step_counts) if exhaustive else min(2 + len(step_counts).bit_length(), len(step_counts))
    return sum(sorted(step_counts, reverse=True)[:tried])


@dataclass
class ThinningStudy:
    """Hold prompts that one model generates in full, row by row, when they are first compared; `late` changes a request
    for its thinned run."""

    model: StudyModel
    scorers: Sequence[QualityScorer]
    full: Sequence[DenoisingRequest]
    late: Callable[[DenoisingRequest], DenoisingRequest] = lambda request: request
    # The other steps reuse deep features, and hits take the list of an image from noise; else they are skipped.
    reuses_features: bool = False
    pictures: list[StudiedImage] = field(default_factory=list, init=False, repr=False)
    worth: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False)

    def prepare(self, count: int) -> None:
        """Generate the first `count` prompts in full, if they are not yet."""
        rows = range(len(self.pictures), min(count, len(self.full)))
        if rows:
            requests = self.full[rows.start : rows.stop]
            pictures = self.model.generated("all steps", requests, rows.start, len(self.full))
            self.pictures += pictures
            for name, worth in self._scored(pictures, rows).items():
                self.worth.setdefault(name, []).extend(worth)

    @property
    def batch(self) -> ThinnedBatch:
        """Return the full requests themselves, to be thinned."""
        return ThinnedBatch("", range(len(self.full)), self.full)

    def hits(self, pairs: Sequence[ReusePair], step: int, again: Renoising = AS_STORED) -> ThinnedBatch:
        """Return the pairs' receivers, each resumed at a captured step of its donor, noised again."""
        self.prepare(len(self.full))
        bridge = bridge_steps(step, again.renoised_steps, again.retaken_steps)
        first = step - again.retaken_steps
        starts = [LatentStart(self.pictures[pair.donor].latents[step], first, bridge) for pair in pairs]
        rows = [pair.receiver for pair in pairs]
        requests = [replace(self.full[row], start=start) for row, start in zip(rows, starts, strict=True)]
        return ThinnedBatch(f"hits at {step}, ", rows, requests)

    def samples(
        self, batch: ThinnedBatch, first_step: int, taken_count: int, spacing: float = 1.0, alpha: float | None = None
    ) -> list[ImageSample]:
        """Return a sample for each request, in order, with `taken_count` steps from `first_step` on. With an `alpha`
        the first ones until LOWER_BOUND's verdict on it is settled."""
        option = ThinningOption(first_step, taken_count, 0.0, spacing)
        steps = thinned_steps(option, self.model.step_count)
        thinned, full = ((), steps) if self.reuses_features else (steps, ())

        def begun(part: slice) -> list[DenoisingRequest]:
            return [
                replace(self._begun(row, self.late(request), first_step), thinned_steps=thinned, full_steps=full)
                for row, request in zip(batch.rows[part], batch.requests[part], strict=True)
            ]

        what = f"{batch.what}{taken_count} steps from {first_step} on, spacing {spacing:g}"
        return self.compared(what, batch.rows, begun, alpha)

    def compared(
        self,
        what: str,
        rows: Sequence[int],
        requests_of: Callable[[slice], Sequence[DenoisingRequest]],
        alpha: float | None,
    ) -> list[ImageSample]:
        """Return a sample for each row: `requests_of` makes the requests of a part. `alpha` as in `samples`."""
        chunk = len(rows) if alpha is None else self.model.generator.max_batch
        found: list[ImageSample] = []
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            self.prepare(max(rows[part]) + 1)
            pictures = self.model.generated(what, requests_of(part), start, len(rows))
            found += self.samples_of(self._scored(pictures, rows[part]), rows[part])
            if alpha is not None and is_settled(tally(found, alpha).kept, len(found), len(rows)):
                break
        return found

    def samples_of(self, worth: Mapping[str, Sequence[float]], rows: Sequence[int]) -> list[ImageSample]:
        """Return a sample for each row's scores compared with the full run's, by the strictest scorer."""
        full = {name: [scores[row] for row in rows] for name, scores in self.worth.items()}
        return strictest([[ImageSample(*pair) for pair in zip(worth[name], full[name], strict=True)] for name in worth])

    def _begun(self, row: int, request: DenoisingRequest, first_step: int) -> DenoisingRequest:
        """Return the request from its full run's latent at `first_step`, if that was captured: until there both are
        the same."""
        request = replace(request, capture_steps=frozenset())
        latent = self.pictures[row].latents.get(first_step)
        if latent is None or request.loras is not None or not isinstance(request.start, NoiseStart):
            return request
        return replace(request, start=LatentStart(latent, first_step))

    def _scored(self, pictures: Sequence[StudiedImage], rows: Sequence[int]) -> Mapping[str, list[float]]:
        files = [picture.png for picture in pictures]
        return {scorer.name: scorer.qualities(files, rows) for scorer in self.scorers}


def full_requests(
    model: StudyModel, prompts: Sequence[str], first_seed: int = 0, capture_steps: Sequence[int] = ()
) -> list[DenoisingRequest]:
    requests = (model.request(prompt, first_seed + row, NoiseStart()) for row, prompt in enumerate(prompts))
    return [replace(request, capture_steps=frozenset(capture_steps)) for request in requests]
