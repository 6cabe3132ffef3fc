"""The bounds of LoRAs, measured: loads the model as the worker would, and paints with each LoRA at ever later steps."""

import importlib.metadata
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from pentimento.diffusion.loras import layers_of
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import NotFound
from pentimento.policies.lora_bounds import LoraBound, late_steps
from pentimento.policies.lora_lateness import LateSample, latest_alike_steps, latest_steps
from pentimento.policies.selector_profiling import ThresholdRule
from services.unet_worker.adapters.lora_directory import open_lora_directory
from services.unet_worker.models.lateness_study import LatenessStudy, steps_to_try
from services.unet_worker.models.selector_measuring import study_model
from services.unet_worker.settings import LoraBoundSettings

BySteps = Mapping[int, Sequence[LateSample]]


def measure(settings: LoraBoundSettings, prompts: Sequence[str]) -> Iterator[LoraBound]:
    """Yield the bound of each LoRA of the directory that changes the model. Takes minutes a LoRA; lines to the log as
    it goes. A K past one that no rule allows is not painted. Raises NotFound where no LoRA fits."""
    torch.set_num_threads(settings.painting.threads)
    quiet_loaders()
    model = study_model(settings.model, settings.painting)
    painter = model.painter.model
    base = layers_of(painter.info.family, painter.adaptable)
    directory = open_lora_directory(settings.loras, painter.info.model_digest, base, painter.dtype, {})
    chosen = [one for one in directory.adapters if not settings.only or one.name in settings.only]
    if not chosen:
        raise NotFound("UNKNOWN_LORA", f"{settings.loras}: no requested LoRA changes {model.spec.model}")
    study = LatenessStudy.begin(model, prompts, steps_to_try(model.step_count, settings.steps), settings.painting.seed)
    for adapter in chosen:
        found: dict[int, Sequence[LateSample]] = {}
        for steps, samples in study.lateness(adapter.name, directory.read(adapter.digest)):
            found[steps] = samples
            if not _may_go_on(found):
                break
        yield _bound(settings, study, adapter, found)


def _may_go_on(found: BySteps) -> bool:
    """Whether some rule, Katz's among them, has allowed every K so far."""
    latest = max(found)
    return latest_alike_steps(found) == latest or any(latest_steps(found, rule) == latest for rule in ThresholdRule)


def _bound(settings: LoraBoundSettings, study: LatenessStudy, adapter: Adapter, found: BySteps) -> LoraBound:
    info, step_count = study.model.painter.model.info, study.model.step_count
    return LoraBound(
        lora_digest=adapter.digest,
        model_digest=info.model_digest,
        latest_start_fraction=latest_steps(found, settings.rule) / step_count,
        lora=adapter.name,
        model=study.model.spec.model,
        rule=settings.rule,
        step_count=step_count,
        alike_steps=latest_alike_steps(found),
        measured=tuple(late_steps(steps, samples) for steps, samples in found.items()),
        prompts=settings.prompts.name,
        build_version=importlib.metadata.version("pentimento"),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
