"""The thinning profile of a model, measured: loads it as the worker would, and paints with ever fewer steps."""

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from pentimento.diffusion.weights import quiet_loaders
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiles import ThinnedRow, ThinningProfile, thinned_row
from pentimento.policies.thinning_profiling import ThinnedSample, allows
from services.unet_worker.models.reuse_study import PictureEncoder, StudyModel
from services.unet_worker.models.selector_measuring import CLIP_SCORE, study_model
from services.unet_worker.models.thinning_study import ThinningStudy, grid
from services.unet_worker.settings import ThinningProfileSettings

Thinned = Mapping[tuple[int, int], Sequence[ThinnedSample]]
"""Samples by first step and steps taken."""


def measure(
    settings: ThinningProfileSettings, prompts: Sequence[str], encoder: PictureEncoder, encoder_of: tuple[str, str]
) -> tuple[ThinningProfile, Thinned]:
    """Return the model's profile and the samples that it was made of; `encoder_of` is the encoder's name and digest.
    Takes minutes; lines to the log as it goes. From each first step on no fewer steps are painted once no rule allows
    the number at hand."""
    torch.set_num_threads(settings.threads)
    quiet_loaders()
    model = _with(settings, study_model(settings.model, settings.max_batch, settings.device, settings.dtype))
    study = ThinningStudy(model, encoder, tuple(dict.fromkeys(prompts)), settings.seed)
    found: dict[tuple[int, int], Sequence[ThinnedSample]] = {}
    for first, counts in grid(model.step_count, settings.begin, settings.keep):
        for taken in counts:
            samples = found[first, taken] = study.samples(first, taken)
            if not any(allows(samples, settings.alpha, rule) for rule in ThresholdRule):
                break
    return _profile(settings, model, encoder_of, found), found


def _with(settings: ThinningProfileSettings, model: StudyModel) -> StudyModel:
    """The model with the number of steps that is asked for, its own by default."""
    steps = settings.steps or model.step_count
    return replace(model, spec=replace(model.spec, num_inference_steps=steps))


def _profile(
    settings: ThinningProfileSettings, model: StudyModel, encoder_of: tuple[str, str], found: Thinned
) -> ThinningProfile:
    rows: list[ThinnedRow] = [
        thinned_row(first, taken, samples, settings.alpha) for (first, taken), samples in found.items()
    ]
    return ThinningProfile(
        model=model.spec.model,
        model_digest=model.painter.model.info.model_digest,
        scheduler=model.spec.scheduler,
        step_count=model.step_count,
        guidance_scale=model.spec.guidance_scale,
        encoder=encoder_of[0],
        encoder_digest=encoder_of[1],
        quality=CLIP_SCORE,
        alpha=settings.alpha,
        rule=settings.rule,
        rows=tuple(rows),
        prompts=settings.prompts.name,
        build_version=importlib.metadata.version("pentimento"),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
