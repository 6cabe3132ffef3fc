"""Measure late LoRAs: load the model as the worker does, and generate with each LoRA from later and later steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from pentimento.diffusion.loras import layers_of
from pentimento.diffusion.weights import quiet_loaders
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
from pentimento.profiles.rules import LateSample, ThresholdRule, latest_alike_steps, latest_steps
from services.unet_worker.adapters.lora_directory import open_lora_directory
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.lateness_study import LatenessStudy, steps_to_try
from services.unet_worker.profiling.reuse import source_of, study_model
from services.unet_worker.profiling.settings import ProfileSettings

BySteps = Mapping[int, Sequence[LateSample]]


def measure(settings: ProfileSettings, inputs: StudyInputs) -> Iterator[Profile]:
    """Yield the profile of each LoRA of the directory that changes the model and has none yet.

    Takes minutes for a LoRA, with occasional log lines. A K past one that no rule allows is skipped. Raises NotFound if
    no LoRA fits.
    """
    torch.set_num_threads(settings.study.threads)
    quiet_loaders()
    assert settings.loras is not None
    model = study_model(settings.model, settings.study)
    painter = model.painter.model
    base = layers_of(painter.info.family, painter.adaptable)
    directory = open_lora_directory(settings.loras, painter.info.model_digest, base, painter.dtype, {})
    chosen = [one for one in directory.adapters if not settings.only or one.name in settings.only]
    if not chosen:
        raise NotFound("UNKNOWN_LORA", f"{settings.loras}: no requested LoRA changes {model.spec.model}")
    tried = steps_to_try(model.step_count, settings.late_steps)
    study = LatenessStudy.begin(model, inputs.prompts, tried, settings.study.seed)
    for adapter in chosen:
        if inputs.earlier_of(_profile(settings, study, adapter, {})) is not None:
            continue
        found: dict[int, Sequence[LateSample]] = {}
        for steps, samples in study.lateness(adapter.name, directory.read(adapter.digest)):
            found[steps] = samples
            if not _may_go_on(found):
                break
        yield _profile(settings, study, adapter, found)


def _may_go_on(found: BySteps) -> bool:
    """Return whether some rule, or Katz's, has allowed every K so far."""
    latest = max(found)
    return latest_alike_steps(found) == latest or any(latest_steps(found, rule) == latest for rule in ThresholdRule)


def _profile(settings: ProfileSettings, study: LatenessStudy, adapter: Adapter, found: BySteps) -> Profile:
    lora = MeasuredAdapter(adapter.digest, name=adapter.name)
    alike_steps = float(latest_alike_steps(found))
    return Profile(
        ProfileKind.LORA,
        ProfiledModel(study.model.spec.model, study.model.painter.model.info.model_digest, adapters=(lora,)),
        ProfileConditions(study.model.step_count),
        ProfilePromise(rule=settings.rule_of(ProfileKind.LORA)),
        replace(source_of(settings), figures={"alike_steps": alike_steps}),
        tuple(lora_row(steps, samples) for steps, samples in found.items()),
    )
