"""What leaving out steps does to quality, measured: every prompt is painted with all steps, and again with fewer.

A picture and the full run that it is compared with have the same seed, so that they differ by what was left out alone.
Quality is CLIPScore, the cosine of picture and prompt, as in `reuse_study`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from pentimento.policies.thinning import ThinningOption, thinned_steps
from pentimento.policies.thinning_profiling import ThinnedSample
from services.unet_worker.models.reuse_study import PictureEncoder, StudyModel, Vectors, told


def grid(step_count: int, begins: Sequence[float], keeps: Sequence[float]) -> Iterator[tuple[int, list[int]]]:
    """Yield each first step with the numbers of steps to try from there on, descending: shares of the schedule, and of
    what remains of it there. No number is tried twice, and none that leaves nothing out."""
    for first in dict.fromkeys(int(begin * step_count) for begin in begins):
        rest = step_count - first
        counts = {max(round(keep * rest), 1) for keep in keeps}
        yield first, sorted((count for count in counts if count < rest), reverse=True)


@dataclass
class ThinningStudy:
    """Prompts painted in full by one model."""

    model: StudyModel
    encoder: PictureEncoder
    prompts: Sequence[str]
    first_seed: int = 0
    _texts: Vectors = field(init=False, repr=False)
    _full: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._texts = self.encoder.embed_texts(self.prompts)
        self._full = self._qualities(())

    def samples(self, first_step: int, taken_count: int) -> list[ThinnedSample]:
        """Return a sample a prompt, in their order: painted with so many steps from `first_step` on."""
        steps = thinned_steps(ThinningOption(first_step, taken_count, 0.0), self.model.step_count)
        return [ThinnedSample(quality, full) for quality, full in zip(self._qualities(steps), self._full, strict=True)]

    def _qualities(self, steps: tuple[int, ...]) -> list[float]:
        requests = [self._request(prompt, self.first_seed + row, steps) for row, prompt in enumerate(self.prompts)]
        what = f"{len(steps)} steps from {steps[0]} on" if steps else "all steps"
        painted = list(told(what, self.model.painter.paint(requests), len(requests)))
        images = self.encoder.embed_pictures([picture.png for picture in painted])
        return [float(image @ text) for image, text in zip(images, self._texts, strict=True)]

    def _request(self, prompt: str, seed: int, steps: tuple[int, ...]) -> PaintingRequest:
        return replace(self.model.request(prompt, seed, NoiseStart()), thinned_steps=steps)
