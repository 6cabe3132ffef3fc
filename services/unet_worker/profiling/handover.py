"""Measure a hand-over: the later model generates from noise, and from the images of the earlier one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pentimento.diffusion.denoising import DenoisingRequest, ImageStart
from pentimento.diffusion.images import decode_pixels
from pentimento.profiles.document import DIGITS, Profile, ProfileConditions, ProfileKind
from pentimento.profiles.kinds import handover_row, taken_steps
from pentimento.profiles.rules import ImageSample, ThresholdRule, mean_share
from services.unet_worker.profiling.inputs import QualityScorer, StudyInputs
from services.unet_worker.profiling.reuse import empty_profile, study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.profiling.steps_study import (
    ClipScore,
    ThinningStudy,
    full_requests,
    most_tried,
    names,
    next_place,
)

ALPHA = 0.95
# Shares of the later model's steps that are skipped, smallest first.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


class HandoverStudy:
    """Compare images of the later model from noise and from the earlier model's images, all of one seed."""

    def __init__(
        self, light: StudyModel, heavy: StudyModel, scorers: Sequence[QualityScorer], prompts: Sequence[str]
    ) -> None:
        self._full = ThinningStudy(heavy, scorers, full_requests(heavy, prompts))
        self._own = ThinningStudy(light, scorers, full_requests(light, prompts))
        self._heavy = heavy

    def prepare(self, count: int) -> None:
        """Generate the first `count` prompts from noise by both models, if they are not yet."""
        self._full.prepare(count)
        self._own.prepare(count)

    def samples(self, taken_count: int, alpha: float | None) -> list[ImageSample]:
        """Return a sample for each prompt: by the later model from the light image, by its last `taken_count` steps.
        With an `alpha` the first ones until LOWER_BOUND's verdict on it is settled."""
        first, spec = self._heavy.step_count - taken_count, self._heavy.spec

        def from_images(part: slice) -> list[DenoisingRequest]:
            self._own.prepare(part.stop)
            return [
                replace(
                    request, start=ImageStart(decode_pixels(own.png, "image", spec.width_px, spec.height_px), first)
                )
                for request, own in zip(self._full.full[part], self._own.pictures[part], strict=True)
            ]

        return self._full.compared(f"{taken_count} steps from images", range(len(self._full.full)), from_images, alpha)

    def own_samples(self) -> list[ImageSample]:
        """Return a sample for each prompt generated so far: the light image."""
        return self._full.samples_of(self._own.worth, range(len(self._own.pictures)))


def measure(settings: ProfileSettings, inputs: StudyInputs) -> Iterator[Profile]:
    """Yield the pair's profile after each share of skipped steps.

    Takes minutes, with occasional log lines. The largest share is searched that the profile's rule allows; if
    `exhaustive`, shares rise until no rule allows one. Rows of an earlier profile are kept. Raises InvalidArgument for
    an earlier profile with other conditions.
    """
    assert settings.light is not None
    light, heavy = study_model(settings.light, settings.study), study_model(settings.model, settings.study)
    prompts = tuple(dict.fromkeys(inputs.prompts))
    scorers = (ClipScore(inputs.images, prompts), *inputs.scorers_of(prompts))
    study = HandoverStudy(light, heavy, scorers, prompts)
    rest = [taken_steps(heavy.step_count, one) for one in SHARES]
    tried = most_tried(rest, exhaustive=settings.exhaustive)
    heavy.announce(len(prompts) * (heavy.step_count + light.step_count + tried))
    study.prepare(len(prompts) if settings.exhaustive else min(len(prompts), heavy.generator.max_batch))
    conditions = ProfileConditions(heavy.step_count, guidance_scale=heavy.spec.guidance_scale)
    profile = empty_profile(ProfileKind.HANDOVER, settings, inputs, heavy, conditions, ALPHA, names(scorers), light)
    rows = {row.at["reuse_share"]: row for row in inputs.earlier_rows(profile)}
    shares = [one for one in SHARES if 0 < taken_steps(heavy.step_count, one) < heavy.step_count]
    rule = None if settings.exhaustive else profile.asked.rule
    settled_alpha = profile.asked.alpha if rule is ThresholdRule.LOWER_BOUND else None
    holds: dict[int, bool] = {}
    while (place := next_place(holds, len(shares), len(shares) // 2 if rule else None)) is not None:
        share = shares[place]
        if share not in rows:
            samples = study.samples(taken_steps(heavy.step_count, share), settled_alpha)
            rows[share] = handover_row(share, samples, profile.asked.alpha)
        light_share = round(mean_share(study.own_samples()), DIGITS)
        measured = replace(profile.measured, figures={"light_share": light_share})
        yield replace(profile, measured=measured, rows=tuple(rows[each] for each in sorted(rows)))
        holds[place] = bool(rows[share].allowed) if rule is None else rows[share].by(rule) is not None
