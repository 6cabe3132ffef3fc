"""Measure reuse: load the model (and a light one) as the worker does, and compare reused starts with noise."""

import importlib.metadata
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pentimento.diffusion.engine import CompiledDenoiser
from pentimento.diffusion.image_generation import BatchGenerator
from pentimento.diffusion.model_registry import check_digest
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import promptless
from pentimento.files.safetensors_header import model_name
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfilePromise,
    ProfileSource,
    ReuseKind,
)
from pentimento.profiles.kinds import reuse_row
from pentimento.profiles.rules import REQUIRED_SHARE, ThresholdRule, share_is_surely
from services.unet_worker.models.checkpoint_loading import denoiser_for, load_checkpoint
from services.unet_worker.models.model_card import usual_of
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.reuse_study import ReuseOutcome, ReuseStudy, StudyModel
from services.unet_worker.profiling.settings import ProfileSettings, StudyRunSettings
from services.unet_worker.profiling.steps_study import CLIP_SCORE

# N of the tables, and K: NIRVANA's for latents (section 5.3), MoDM's for images (section 5.2).
TABLE_STEPS = 50
LATENT_STEPS = (5, 10, 15, 20, 25)
IMAGE_STEPS = (5, 10, 15, 20, 25, 30)
ALPHAS = {ReuseKind.LATENTS: 0.9, ReuseKind.IMAGES: 0.95}


def study_model(directory: Path, study: StudyRunSettings) -> StudyModel:
    """Load a model with its usual steps, guidance, size and first scheduler.

    Raises BadCheckpoint, and FailedPrecondition if the registry next to it expects other weights.
    """
    torch.set_num_threads(study.threads)
    model = load_checkpoint(directory, study.device, study.dtype, study.compile, study.weights)
    check_digest(directory, model.info.model_digest, "")
    info, (steps, guidance) = model.info, usual_of(directory, 0, -1.0)
    size_px = info.default_width_px, info.default_height_px
    spec = promptless(model_name(directory), size_px, steps, guidance, info.schedulers[0])
    denoiser = denoiser_for(model, study.compile)
    if isinstance(denoiser, CompiledDenoiser):
        with torch.inference_mode():
            denoiser.warm(info.batch_key(spec), (study.max_batch,))
    return StudyModel(BatchGenerator(model, denoiser, study.max_batch), spec)


def captured_steps(step_count: int) -> dict[int, int]:
    """Return the step of the model's own schedule for each K of the table that has one."""
    found = {step: step * step_count // TABLE_STEPS for step in LATENT_STEPS}
    return {step: own for step, own in found.items() if own > 0}


def measure(settings: ProfileSettings, inputs: StudyInputs) -> Iterator[Profile]:
    """Yield the profile of the model's latents and, with a light model, of the images that it refines, after each K.

    Takes minutes, with occasional log lines. Raises InvalidArgument if no two prompts are similar enough.
    """
    large = study_model(settings.model, settings.study)
    light = None if settings.light is None else study_model(settings.light, settings.study)
    own_steps = captured_steps(large.step_count)
    late = sum(large.step_count - own for own in own_steps.values())
    refined = (
        0 if light is None else sum(light.step_count * (TABLE_STEPS - step) // TABLE_STEPS for step in IMAGE_STEPS)
    )
    # Repeats of a prompt are generated only as donors of images.
    different = len(dict.fromkeys(inputs.prompts))
    own = len(inputs.prompts) if light is not None else different
    large.announce(own * large.step_count + different * (late + refined))
    study = ReuseStudy(large, inputs.images, inputs.prompts, tuple(own_steps.values()))
    table = _Table(settings, inputs, large)
    latents = study.latent_pairs(settings.least_similarity)
    _check_pairs("text to text", len(latents), settings)

    def from_latents(step: int) -> Iterator[ReuseOutcome]:
        found = study.reuse_latents(latents, (own_steps[step],))
        return (replace(outcome, skipped_steps=step) for outcome in found)

    yield from table.profiles(ReuseKind.LATENTS, large, own_steps, from_latents, len(latents))
    if light is not None:
        images = study.image_pairs(settings.least_image_similarity)
        _check_pairs("text to image", len(images), settings)
        yield from table.profiles(
            ReuseKind.IMAGES,
            light,
            IMAGE_STEPS,
            lambda step: study.reuse_images(light, images, (step,), TABLE_STEPS),
            len(images),
        )


def _check_pairs(what: str, count: int, settings: ProfileSettings) -> None:
    if count == 0:
        raise InvalidArgument.of("prompts", f"{settings.prompts}: no two of them are near enough, {what}")


@dataclass(frozen=True)
class _Table:
    """Make profiles of the samples against one large model."""

    settings: ProfileSettings
    inputs: StudyInputs
    large: StudyModel

    def profiles(
        self,
        start: ReuseKind,
        model: StudyModel,
        steps: Iterable[int],
        outcomes: Callable[[int], Iterator[ReuseOutcome]],
        pair_count: int,
    ) -> Iterator[Profile]:
        """Yield the profile after each K that has outcomes; rows of an earlier one are kept. `outcomes` yields one for
        each of `pair_count` pairs, the most similar first."""
        conditions = ProfileConditions(TABLE_STEPS, model.step_count, start=start)
        given = (self.settings, self.inputs, model, conditions, ALPHAS[start], CLIP_SCORE, self.large)
        profile = empty_profile(ProfileKind.REUSE, *given)
        profile = replace(profile, rows=self.inputs.earlier_rows(profile))
        there = {row.place("skipped_steps") for row in profile.rows}
        for step in steps:
            found = list(self._telling(outcomes(step), profile, pair_count)) if step not in there else []
            if found:
                row = reuse_row(step, [outcome.sample() for outcome in found], profile.asked.alpha)
                rows = sorted((*profile.rows, row), key=lambda one: one.place("skipped_steps"))
                profile = replace(profile, rows=tuple(rows))
                yield profile

    def _telling(self, outcomes: Iterator[ReuseOutcome], profile: Profile, pair_count: int) -> Iterator[ReuseOutcome]:
        """Yield the outcomes as long as a lower similarity may still be allowed by the profile's rule."""
        early = profile.asked.rule is ThresholdRule.LOWER_BOUND and not self.settings.exhaustive
        failures = 0
        for outcome in outcomes:
            yield outcome
            failures += not outcome.sample().keeps(profile.asked.alpha)
            if early and not share_is_surely(pair_count - failures, pair_count, REQUIRED_SHARE):
                return


def empty_profile(
    kind: ProfileKind,
    settings: ProfileSettings,
    inputs: StudyInputs,
    model: StudyModel,
    conditions: ProfileConditions,
    alpha: float,
    measured_by: str,
    reference: StudyModel | None = None,
    adapters: tuple[MeasuredAdapter, ...] = (),
) -> Profile:
    """Return the profile before any row; `alpha` unless the settings have another."""
    encoder = (inputs.encoder_name, inputs.encoder_digest)
    against = (reference.spec.model, reference.digest) if reference is not None else ("", "")
    return Profile(
        kind,
        ProfiledModel(model.spec.model, model.digest, *against, *encoder, adapters=adapters),
        conditions,
        ProfilePromise(settings.alpha or alpha, settings.rule_of(kind), measured_by),
        source_of(settings),
    )


def source_of(settings: ProfileSettings) -> ProfileSource:
    """Return the origin of a measurement that begins now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    prompts = settings.prompts.name if settings.prompts is not None else ""
    return ProfileSource(prompts, importlib.metadata.version("pentimento"), now)
