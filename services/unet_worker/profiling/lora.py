"""Measure late LoRAs: load the model as the worker does, and generate every prompt with each LoRA from the start,
without it, and with it from step K on, with the same seed (Katz, section 6).

The strength of a late LoRA is the remaining share of its change of the final latent, projected on that change.
It needs no scorer of styles and is stricter than one: a classifier may be sure of a style that is half gone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

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
from pentimento.profiles.rules import LateSample, ThresholdRule, late_is_settled, latest_alike_steps
from services.unet_worker.adapters.lora_directory import open_lora_directory
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.reuse import source_of, study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.profiling.steps_study import most_tried, next_place


@dataclass
class LatenessStudy:
    """Hold images of one model without a LoRA, for comparison, each generated when it is first needed; `steps` are the
    K to try."""

    model: StudyModel
    prompts: Sequence[str]
    steps: tuple[int, ...]
    first_seed: int = 0
    _without: list[StudiedImage] = field(default_factory=list, init=False, repr=False)

    @property
    def without(self) -> Sequence[StudiedImage]:
        """Return the images of all prompts without LoRAs."""
        self._prepare(len(self.prompts))
        return self._without

    def on_time(self, name: str, lora: Lora) -> list[StudiedImage]:
        return self.generated(f"{name} from the start", [lora], 0)

    def alike(self, on_time: Sequence[StudiedImage]) -> Mapping[int, Sequence[float]]:
        """Return for each K the cosines of the latents of the first prompts with a LoRA and without it after those
        steps."""
        return {steps: _cosines(self._without[: len(on_time)], on_time, steps) for steps in self.steps}

    def lateness(
        self, name: str, lora: Lora, steps: int, on_time: list[StudiedImage], rule: ThresholdRule | None = None
    ) -> list[LateSample]:
        """Return a sample of each prompt with the LoRA after `steps` steps; with a `rule` the first ones until its
        verdict is settled. `on_time` receives the images with the LoRA from the start that it lacks."""
        count = len(self.prompts)
        chunk = count if rule is None else self.model.generator.max_batch
        found: list[LateSample] = []
        for start in range(0, count, chunk):
            part = range(start, min(start + chunk, count))
            on_time += self.generated(f"{name} from the start", [lora], 0, range(len(on_time), part.stop))
            late = self.generated(f"{name} after {steps} steps", [lora], steps, part)
            without, full = self._without[part.start : part.stop], on_time[part.start : part.stop]
            rows = zip(
                _cosines(full, late), strengths(without, full, late), _cosines(without, full, steps), strict=True
            )
            found += [LateSample(*row) for row in rows]
            if rule is not None and late_is_settled(found, count, rule):
                break
        return found

    def generated(
        self, what: str, loras: Sequence[Lora], from_step: int, rows: range | None = None
    ) -> list[StudiedImage]:
        """Return the images of `rows`, by default all prompts, with LoRAs from a step on; `what` is their name in the
        log."""
        rows = range(len(self.prompts)) if rows is None else rows
        if not rows:
            return []
        self._prepare(rows.stop)
        requests = [self._request(row, loras, from_step) for row in rows]
        return self.model.generated(what, requests, rows.start, len(self.prompts))

    def _prepare(self, count: int) -> None:
        """Generate the first `count` prompts without LoRAs, if they are not yet."""
        rows = range(len(self._without), count)
        if rows:
            requests = [self._request(row, (), 0) for row in rows]
            self._without += self.model.generated("without LoRAs", requests, rows.start, len(self.prompts))

    def _request(self, row: int, loras: Sequence[Lora], from_step: int) -> DenoisingRequest:
        # Until that step the image is the one without LoRAs.
        latent = self._without[row].latents.get(from_step) if from_step else None
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


def measure(settings: ProfileSettings, inputs: StudyInputs) -> Iterator[Profile]:
    """Yield the profile of each LoRA of the directory that changes the model after each K.

    Takes minutes for a LoRA, with occasional log lines. The largest K is searched that the profile's rule allows, each
    with prompts until the rule's verdict is settled; if `exhaustive`, K rises until no rule allows it, with all
    prompts. Rows of an earlier profile are kept. Raises NotFound if no LoRA fits.
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
    study = LatenessStudy(model, inputs.prompts, tried)
    for adapter in chosen:
        lora = partial(directory.read, adapter.digest)
        yield from _profiles(settings, study, inputs, _empty_profile(settings, study, adapter), lora)


def _profiles(
    settings: ProfileSettings, study: LatenessStudy, inputs: StudyInputs, profile: Profile, read: Callable[[], Lora]
) -> Iterator[Profile]:
    """Yield the profile of a LoRA after each K that is measured."""
    rows = {row.place("steps"): row for row in inputs.earlier_rows(profile)}
    rule = None if settings.exhaustive else profile.asked.rule
    name = profile.of.adapters[0].name
    lora: Lora | None = None
    on_time: list[StudiedImage] = []
    holds: dict[int, bool] = {}
    while (place := next_place(holds, len(study.steps), None if rule is None else 0)) is not None:
        steps = study.steps[place]
        if steps not in rows:
            lora = read() if lora is None else lora
            rows[steps] = lora_row(steps, study.lateness(name, lora, steps, on_time, rule))
            figures = {"alike_steps": float(latest_alike_steps(study.alike(on_time)))}
            measured = replace(profile.measured, figures=figures)
            yield replace(profile, measured=measured, rows=tuple(rows[each] for each in sorted(rows)))
        holds[place] = bool(rows[steps].allowed) if rule is None else rows[steps].by(rule) is not None


def _empty_profile(settings: ProfileSettings, study: LatenessStudy, adapter: Adapter) -> Profile:
    lora = MeasuredAdapter(adapter.digest, name=adapter.name)
    return Profile(
        ProfileKind.LORA,
        ProfiledModel(study.model.spec.model, study.model.digest, adapters=(lora,)),
        ProfileConditions(study.model.step_count),
        ProfilePromise(rule=settings.rule_of(ProfileKind.LORA)),
        source_of(settings),
    )
