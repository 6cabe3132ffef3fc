"""Measure how late a LoRA may come: every prompt is generated with it from the start, without it, and with it from
step K on, with the same seed (Katz, section 6).

The strength of a late LoRA is the remaining share of its change of the final latent, projected on that change.
It needs no scorer of styles and is stricter than one: a classifier may be sure of a style that is half gone.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.loras import Lora
from pentimento.diffusion.loras.loading import LoadingLoras
from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from pentimento.diffusion.reuse_painting import StudiedPicture
from pentimento.profiles.rules import LateSample
from services.unet_worker.profiling.reuse_study import StudyModel, told


@dataclass(frozen=True)
class LatenessStudy:
    """Hold images of one model without a LoRA, for comparison; `steps` are the K to try."""

    model: StudyModel
    prompts: Sequence[str]
    steps: tuple[int, ...]
    first_seed: int
    without: Sequence[StudiedPicture]

    @classmethod
    def begin(
        cls, model: StudyModel, prompts: Sequence[str], steps: tuple[int, ...], first_seed: int = 0
    ) -> "LatenessStudy":
        """Generate all prompts without a LoRA."""
        study = cls(model, prompts, steps, first_seed, ())
        return replace(study, without=study.generated("without LoRAs", None, 0))

    def lateness(self, name: str, lora: Lora) -> Iterator[tuple[int, Sequence[LateSample]]]:
        """Yield each K with a sample of every prompt, the fewest steps first."""
        on_time = self.generated(f"{name} from the start", lora, 0)
        alike = {steps: _cosines(self.without, on_time, steps) for steps in self.steps}
        for steps in self.steps:
            late = self.generated(f"{name} after {steps} steps", lora, steps)
            rows = zip(_cosines(on_time, late), strengths(self.without, on_time, late), alike[steps], strict=True)
            yield steps, [LateSample(*row) for row in rows]

    def generated(self, what: str, lora: Lora | None, from_step: int) -> Sequence[StudiedPicture]:
        """Return the images of all prompts with a LoRA from a step on; `what` is their name in the log."""
        requests = [self._request(row, lora, from_step) for row in range(len(self.prompts))]
        return list(told(what, self.model.painter.paint(requests), len(requests)))

    def _request(self, row: int, lora: Lora | None, from_step: int) -> PaintingRequest:
        request = self.model.request(self.prompts[row], self.first_seed + row, NoiseStart())
        kept = frozenset(self.steps) if from_step == 0 else frozenset[int]()
        return replace(request, capture_steps=kept, loras=_from_step(lora, from_step) if lora is not None else None)


def _from_step(lora: Lora, step: int) -> LoadingLoras:
    here: Future[Lora] = Future()
    here.set_result(lora)
    return LoadingLoras([here], [1.0], step, exactly=True)


def _stacked(pictures: Sequence[StudiedPicture], step: int | None = None) -> Tensor:
    """Return rows of numbers: the latents before a step, or the final ones."""
    found = [picture.final if step is None else picture.latents[step] for picture in pictures]
    return torch.cat(found).flatten(1).double().cpu()


def _cosines(one: Sequence[StudiedPicture], other: Sequence[StudiedPicture], step: int | None = None) -> list[float]:
    found: list[float] = functional.cosine_similarity(_stacked(one, step), _stacked(other, step)).tolist()
    return found


def strengths(
    without: Sequence[StudiedPicture], on_time: Sequence[StudiedPicture], late: Sequence[StudiedPicture]
) -> list[float]:
    """Return for each image the remaining share of the LoRA's change of the final latent; 1 if the LoRA changes
    nothing."""
    base = _stacked(without)
    change, there = _stacked(on_time) - base, _stacked(late) - base
    wanted = (change * change).sum(dim=1)
    shares = torch.where(wanted > 0, (there * change).sum(dim=1) / wanted, torch.ones_like(wanted))
    found: list[float] = shares.tolist()
    return found


def steps_to_try(step_count: int, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the K of `wanted` that a schedule of `step_count` steps has."""
    return tuple(sorted({steps for steps in wanted if 0 < steps < step_count}))
