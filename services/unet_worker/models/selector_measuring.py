"""The selector profiles of a model, measured: loads it (and a small one) as the worker would, and studies reuse."""

import importlib.metadata
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pentimento.diffusion.engine import EagerDenoiser
from pentimento.diffusion.families import load_model
from pentimento.diffusion.model_registry import check_digest
from pentimento.diffusion.reuse_painting import ReusePainter
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec
from pentimento.domain.models import derived_name
from pentimento.policies.selector_profiles import ReuseKind, SelectorProfile, profiled_steps
from pentimento.policies.selector_profiling import profile_thresholds
from services.unet_worker.device.torch_device import choose_device, choose_dtype
from services.unet_worker.models.reuse_study import PictureEncoder, ReuseOutcome, ReuseStudy, StudyModel, by_step
from services.unet_worker.models.thinning_study import CLIP_SCORE
from services.unet_worker.models.usual_costs import usual_of
from services.unet_worker.settings import SelectorProfileSettings, StudyPaintingSettings

# N of the tables, and K: of latents NIRVANA's (section 5.3), of images MoDM's (section 5.2).
TABLE_STEPS = 50
LATENT_STEPS = (5, 10, 15, 20, 25)
IMAGE_STEPS = (5, 10, 15, 20, 25, 30)


@dataclass(frozen=True)
class MeasuredProfile:
    """A profile and what it was made of."""

    profile: SelectorProfile
    outcomes: tuple[ReuseOutcome, ...]


def study_model(directory: Path, painting: StudyPaintingSettings) -> StudyModel:
    """Load a model with its own usual steps, guidance, size and first scheduler. Raises BadCheckpoint, and
    FailedPrecondition when it is not the one that the registry beside it expects."""
    chosen = choose_device(painting.device)
    model = load_model(directory, chosen, choose_dtype(painting.dtype, chosen))
    check_digest(directory, model.info.model_digest, "")
    info, (steps, guidance) = model.info, usual_of(directory, 0, -1.0)
    spec = GenerationSpec(
        prompt="",
        negative_prompt="",
        model=derived_name(directory.resolve().name),
        width_px=info.default_width_px,
        height_px=info.default_height_px,
        num_inference_steps=steps,
        guidance_scale=guidance,
        scheduler=info.schedulers[0],
        seed=0,
    )
    return StudyModel(ReusePainter(model, EagerDenoiser(model), painting.max_batch), spec)


def captured_steps(step_count: int) -> dict[int, int]:
    """Return the step of the model's own schedule for each K of the table; a K of which nothing is left is left out."""
    found = {step: step * step_count // TABLE_STEPS for step in LATENT_STEPS}
    return {step: own for step, own in found.items() if own > 0}


def measure(
    settings: SelectorProfileSettings, prompts: Sequence[str], encoder: PictureEncoder, encoder_of: tuple[str, str]
) -> Iterator[MeasuredProfile]:
    """Yield the profile of the model's latents and, with a small model, that of the images it refines; `encoder_of` is
    the encoder's name and digest. Takes minutes; lines to the log as it goes. Raises InvalidArgument where the prompts
    have no pair that is alike enough."""
    torch.set_num_threads(settings.painting.threads)
    quiet_loaders()
    large = study_model(settings.model, settings.painting)
    small = None if settings.small_model is None else study_model(settings.small_model, settings.painting)
    own_steps = captured_steps(large.step_count)
    study = ReuseStudy(large, encoder, prompts, tuple(own_steps.values()), settings.painting.seed)
    profiles = _Profiles(settings, large, encoder_of)
    latents = study.latent_pairs(settings.least_similarity)
    _check_pairs("text to text", len(latents), settings)
    table_steps = {own: step for step, own in own_steps.items()}
    found = list(study.reuse_latents(latents, tuple(own_steps.values())))
    outcomes = tuple(replace(outcome, skipped_steps=table_steps[outcome.skipped_steps]) for outcome in found)
    yield MeasuredProfile(profiles.of(ReuseKind.LATENTS, large, outcomes), outcomes)
    if small is not None:
        images = study.image_pairs(settings.least_image_similarity)
        _check_pairs("text to image", len(images), settings)
        refined = tuple(study.reuse_images(small, images, IMAGE_STEPS, TABLE_STEPS))
        yield MeasuredProfile(profiles.of(ReuseKind.IMAGES, small, refined), refined)


def _check_pairs(what: str, count: int, settings: SelectorProfileSettings) -> None:
    if count == 0:
        raise InvalidArgument.of("prompts", f"{settings.prompts}: no two of them are near enough, {what}")


class _Profiles:
    """Makes profiles of what was measured against one large model."""

    def __init__(self, settings: SelectorProfileSettings, large: StudyModel, encoder_of: tuple[str, str]) -> None:
        self._settings = settings
        self._large = large
        self._encoder, self._encoder_digest = encoder_of

    def of(self, kind: ReuseKind, model: StudyModel, outcomes: Sequence[ReuseOutcome]) -> SelectorProfile:
        settings = self._settings
        alpha = settings.latent_alpha if kind is ReuseKind.LATENTS else settings.image_alpha
        return SelectorProfile(
            kind=kind,
            model=model.spec.model,
            model_digest=model.painter.model.info.model_digest,
            reference_model=self._large.spec.model,
            reference_model_digest=self._large.painter.model.info.model_digest,
            encoder=self._encoder,
            encoder_digest=self._encoder_digest,
            quality=CLIP_SCORE,
            alpha=alpha,
            rule=settings.rule,
            step_count=TABLE_STEPS,
            model_step_count=model.step_count,
            pair_count=len({outcome.pair for outcome in outcomes}),
            steps=profiled_steps(profile_thresholds(by_step(outcomes), alpha)),
            prompts=settings.prompts.name,
            build_version=importlib.metadata.version("pentimento"),
            measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
