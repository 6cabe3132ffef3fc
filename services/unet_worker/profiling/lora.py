"""Measure late LoRAs: load the model as the worker does, and generate every prompt with each LoRA from the start,
without it, and with it from step K on, with the same seed (Katz, section 6).

The strength of a late LoRA is the remaining share of its change of the final latent, projected on that change.
It needs no scorer of styles and is stricter than one: a classifier may be sure of a style that is half gone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.image_generation import StudiedImage
from pentimento.diffusion.loras import Lora, layers_of
from pentimento.diffusion.loras.loading import LoadingLoras
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import NotFound
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfilePromise,
)
from pentimento.profiles.kinds import lora_row
from pentimento.profiles.rules import LateSample, ThresholdRule, late_tally, latest_alike_steps
from services.unet_worker.adapters.lora_directory import open_lora_directory
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.reuse import source_of, study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.profiling.steps_study import most_tried, next_place


@dataclass(frozen=True)
class LatenessStudy:
    """Hold images of one model without a LoRA, for comparison; `steps` are the K to try."""

    model: StudyModel
    prompts: Sequence[str]
    steps: tuple[int, ...]
    first_seed: int
    without: Sequence[StudiedImage]

    @classmethod
    def begin(
        cls, model: StudyModel, prompts: Sequence[str], steps: tuple[int, ...], first_seed: int = 0
    ) -> "LatenessStudy":
        study = cls(model, prompts, steps, first_seed, ())
        return replace(study, without=study.generated("without LoRAs", (), 0))

    def on_time(self, name: str, lora: Lora) -> Sequence[StudiedImage]:
        return self.generated(f"{name} from the start", [lora], 0)

    def alike(self, on_time: Sequence[StudiedImage]) -> Mapping[int, Sequence[float]]:
        """Return for each K the cosines of the latents with a LoRA and without it after those steps."""
        return {steps: _cosines(self.without, on_time, steps) for steps in self.steps}

    def lateness(self, name: str, lora: Lora, steps: int, on_time: Sequence[StudiedImage]) -> Sequence[LateSample]:
        """Return a sample of every prompt with the LoRA after `steps` steps."""
        late = self.generated(f"{name} after {steps} steps", [lora], steps)
        alike = _cosines(self.without, on_time, steps)
        rows = zip(_cosines(on_time, late), strengths(self.without, on_time, late), alike, strict=True)
        return [LateSample(*row) for row in rows]

    def generated(self, what: str, loras: Sequence[Lora], from_step: int) -> Sequence[StudiedImage]:
        """Return the images of all prompts with LoRAs from a step on; `what` is their name in the log."""
        requests = [self._request(row, loras, from_step) for row in range(len(self.prompts))]
        return self.model.generated(what, requests)

    def _request(self, row: int, loras: Sequence[Lora], from_step: int) -> DenoisingRequest:
        # Until that step the image is the one without LoRAs.
        latent = self.without[row].latents.get(from_step) if self.without else None
        start = NoiseStart() if latent is None else LatentStart(latent, from_step)
        request = self.model.request(self.prompts[row], self.first_seed + row, start)
        kept = frozenset(self.steps) if from_step == 0 else frozenset[int]()
        return replace(request, capture_steps=kept, loras=LoadingLoras.ready(loras, from_step) if loras else None)


def _stacked(pictures: Sequence[StudiedImage], step: int | None = None) -> Tensor:
    """Return rows of numbers: the latents before a step, or the final ones."""
    found = [picture.final if step is None else picture.latents[step] for picture in pictures]
    return torch.cat(found).flatten(1).double().cpu()


def _cosines(one: Sequence[StudiedImage], other: Sequence[StudiedImage], step: int | None = None) -> list[float]:
    found: list[float] = functional.cosine_similarity(_stacked(one, step), _stacked(other, step)).tolist()
    return found


def strengths(
    without: Sequence[StudiedImage], on_time: Sequence[StudiedImage], late: Sequence[StudiedImage]
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


# Numbers of steps without the LoRA that are tried.
LATE_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25)
BySteps = Mapping[int, Sequence[LateSample]]


def measure(settings: ProfileSettings, inputs: StudyInputs) -> Iterator[Profile]:
    """Yield the profile of each LoRA of the directory that changes the model and has none yet.

    Takes minutes for a LoRA, with occasional log lines. The largest K is searched that the profile's rule allows; if
    `exhaustive`, K rises until no rule allows it. Raises NotFound if no LoRA fits.
    """
    assert settings.loras is not None
    model = study_model(settings.model, settings.study)
    generator = model.generator.model
    base = layers_of(generator.info.family, generator.adaptable)
    directory = open_lora_directory(settings.loras, generator.info.model_digest, base, generator.dtype, dict)
    chosen = [one for one in directory.adapters if not settings.only or one.name in settings.only]
    if not chosen:
        raise NotFound("UNKNOWN_LORA", f"{settings.loras}: no requested LoRA changes {model.spec.model}")
    tried = steps_to_try(model.step_count, LATE_STEPS)
    late = [model.step_count - steps for steps in tried]
    each = model.step_count + most_tried(late, exhaustive=settings.exhaustive)
    model.announce(len(inputs.prompts) * (model.step_count + len(chosen) * each))
    study = LatenessStudy.begin(model, inputs.prompts, tried)
    for adapter in chosen:
        if inputs.earlier_of(_profile(settings, study, adapter, {}, 0)) is not None:
            continue
        lora = directory.read(adapter.digest)
        on_time = study.on_time(adapter.name, lora)
        found: dict[int, Sequence[LateSample]] = {}
        holds: dict[int, bool] = {}
        while (place := next_place(holds, len(tried), None if settings.exhaustive else 0)) is not None:
            samples = found[tried[place]] = study.lateness(adapter.name, lora, tried[place], on_time)
            rules = tuple(ThresholdRule) if settings.exhaustive else (settings.rule_of(ProfileKind.LORA),)
            holds[place] = any(late_tally(samples).allows(rule) for rule in rules)
        yield _profile(settings, study, adapter, found, latest_alike_steps(study.alike(on_time)))


def _profile(
    settings: ProfileSettings, study: LatenessStudy, adapter: Adapter, found: BySteps, alike_steps: int
) -> Profile:
    lora = MeasuredAdapter(adapter.digest, name=adapter.name)
    return Profile(
        ProfileKind.LORA,
        ProfiledModel(study.model.spec.model, study.model.generator.model.info.model_digest, adapters=(lora,)),
        ProfileConditions(study.model.step_count),
        ProfilePromise(rule=settings.rule_of(ProfileKind.LORA)),
        replace(source_of(settings), figures={"alike_steps": float(alike_steps)}),
        tuple(lora_row(steps, found[steps]) for steps in sorted(found)),
    )
