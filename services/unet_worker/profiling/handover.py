"""Measure a hand-over: the later model generates from noise, and from the images of the earlier one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.painting import ImageStart
from pentimento.profiles.document import (
    DIGITS,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfilePromise,
)
from pentimento.profiles.kinds import handover_row, taken_steps
from pentimento.profiles.rules import ImageSample, mean_share, strictest
from services.unet_worker.profiling.inputs import QualityScorer, StudyInputs
from services.unet_worker.profiling.reuse import source_of, study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.profiling.steps_study import ClipScore, full_requests

ALPHA = 0.95


@dataclass(frozen=True)
class _ScoredImages:
    """Hold the encoded images of all prompts by one way to generate them, and their scores by each scorer."""

    files: Sequence[bytes]
    scores: Sequence[Sequence[float]]

    def beside(self, full: "_ScoredImages") -> list[ImageSample]:
        """Return a sample for each prompt: these images compared with the full run's, by the strictest scorer."""
        pairs = zip(self.scores, full.scores, strict=True)
        return strictest([[ImageSample(*pair) for pair in zip(*own, strict=True)] for own in pairs])


@dataclass(frozen=True)
class HandoverStudy:
    """Hold prompts that both models generate, with one seed for the compared images."""

    light: StudyModel
    heavy: StudyModel
    scorers: Sequence[QualityScorer]
    prompts: Sequence[str]
    first_seed: int = 0

    def from_noise(self, model: StudyModel) -> _ScoredImages:
        """Return every prompt's image with all steps."""
        requests = full_requests(model, self.prompts, self.first_seed)
        return self._scored([one.png for one in model.generated("from noise", requests)])

    def from_images(self, files: Sequence[bytes], taken_count: int) -> _ScoredImages:
        """Return every prompt's image by the later model from that file, by its last `taken_count` steps."""
        heavy, first = self.heavy, self.heavy.step_count - taken_count
        requests = [
            replace(request, start=ImageStart(self._pixels(file), first))
            for request, file in zip(full_requests(heavy, self.prompts, self.first_seed), files, strict=True)
        ]
        return self._scored([one.png for one in heavy.generated(f"{taken_count} steps from images", requests)])

    def _pixels(self, file: bytes) -> torch.Tensor:
        return decode_pixels(file, "image", self.heavy.spec.width_px, self.heavy.spec.height_px)

    def _scored(self, files: Sequence[bytes]) -> _ScoredImages:
        return _ScoredImages(files, [scorer.qualities(files, range(len(files))) for scorer in self.scorers])


def measure(settings: ProfileSettings, inputs: StudyInputs) -> Iterator[Profile]:
    """Yield the pair's profile after each share of skipped steps.

    Takes minutes, with occasional log lines. Larger shares are skipped once no rule allows the current one. Rows of an
    earlier profile are kept. Raises InvalidArgument for an earlier profile with other conditions.
    """
    assert settings.light is not None
    light, heavy = study_model(settings.light, settings.study), study_model(settings.model, settings.study)
    prompts = tuple(dict.fromkeys(inputs.prompts))
    scorers = (ClipScore(inputs.images, prompts), *inputs.scorers_of(prompts))
    study = HandoverStudy(light, heavy, scorers, prompts, settings.study.seed)
    full, own = study.from_noise(heavy), study.from_noise(light)
    profile = _empty(settings, study, inputs, round(mean_share(own.beside(full)), DIGITS))
    rows = {row.at["reuse_share"]: row for row in inputs.earlier_rows(profile)}
    for share in sorted(set(settings.shares)):
        taken = taken_steps(heavy.step_count, share)
        if not 0 < taken < heavy.step_count:
            continue
        if share not in rows:
            samples = study.from_images(own.files, taken).beside(full)
            rows[share] = handover_row(share, samples, profile.asked.alpha)
        yield replace(profile, rows=tuple(rows[each] for each in sorted(rows)))
        if not rows[share].allowed:
            break


def _empty(settings: ProfileSettings, study: HandoverStudy, inputs: StudyInputs, light_share: float) -> Profile:
    """Return the profile before any row."""
    light, heavy = study.light, study.heavy
    return Profile(
        ProfileKind.HANDOVER,
        ProfiledModel(
            model=heavy.spec.model,
            model_digest=heavy.painter.model.info.model_digest,
            reference=light.spec.model,
            reference_digest=light.painter.model.info.model_digest,
            encoder=inputs.encoder_name,
            encoder_digest=inputs.encoder_digest,
        ),
        ProfileConditions(heavy.step_count, guidance_scale=heavy.spec.guidance_scale),
        ProfilePromise(
            settings.alpha or ALPHA,
            settings.rule_of(ProfileKind.HANDOVER),
            " and ".join(scorer.name for scorer in study.scorers),
        ),
        replace(source_of(settings), figures={"light_share": light_share}),
    )
