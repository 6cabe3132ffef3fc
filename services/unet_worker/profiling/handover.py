"""Measure a hand-over: the later model generates from noise, and from the images of the earlier one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from pentimento.diffusion.denoising import ImageStart
from pentimento.diffusion.images import decode_pixels
from pentimento.profiles.document import DIGITS, Profile, ProfileConditions, ProfiledModel, ProfileKind, ProfilePromise
from pentimento.profiles.kinds import handover_row, taken_steps
from pentimento.profiles.rules import ImageSample, ThresholdRule, is_settled, mean_share, strictest, tally
from services.unet_worker.profiling.inputs import QualityScorer, StudyInputs
from services.unet_worker.profiling.reuse import source_of, study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import ProfileSettings
from services.unet_worker.profiling.steps_study import ClipScore, full_requests, most_tried, next_place

ALPHA = 0.95
# Shares of the later model's steps that are skipped, smallest first.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass
class _ScoredImages:
    """Hold the encoded images of the first prompts by one way to generate them, and their scores by each scorer."""

    files: list[bytes]
    scores: list[list[float]]

    def add(self, files: Sequence[bytes], scorers: Sequence[QualityScorer]) -> None:
        """Add the images of the next prompts."""
        rows = range(len(self.files), len(self.files) + len(files))
        self.files += files
        for own, scorer in zip(self.scores, scorers, strict=True):
            own += scorer.qualities(files, rows)

    def samples(self, full: "_ScoredImages") -> list[ImageSample]:
        """Return a sample for each prompt: these images compared with the full run's, by the strictest scorer."""
        pairs = zip(self.scores, full.scores, strict=True)
        return strictest([[ImageSample(*pair) for pair in zip(*own, strict=False)] for own in pairs])


@dataclass
class HandoverStudy:
    """Hold prompts that both models generate, with one seed for the compared images, when they are first compared."""

    light: StudyModel
    heavy: StudyModel
    scorers: Sequence[QualityScorer]
    prompts: Sequence[str]
    full: _ScoredImages = field(init=False)
    own: _ScoredImages = field(init=False)

    def __post_init__(self) -> None:
        self.full, self.own = self._none(), self._none()

    def _none(self) -> _ScoredImages:
        return _ScoredImages([], [[] for _ in self.scorers])

    def prepare(self, count: int) -> None:
        """Generate the first `count` prompts from noise by both models, if they are not yet."""
        for found, model in ((self.full, self.heavy), (self.own, self.light)):
            requests = full_requests(model, self.prompts)[len(found.files) : count]
            if requests:
                images = model.generated("from noise", requests, len(found.files), len(self.prompts))
                found.add([one.png for one in images], self.scorers)

    def samples(self, taken_count: int, alpha: float | None) -> list[ImageSample]:
        """Return a sample for each prompt: by the later model from the light image, by its last `taken_count` steps.
        With an `alpha` the first ones until LOWER_BOUND's verdict on it is settled."""
        count = len(self.prompts)
        chunk = count if alpha is None else self.heavy.generator.max_batch
        images = self._none()
        for start in range(0, count, chunk):
            self.prepare(min(start + chunk, count))
            images.add(self._from_images(start, min(start + chunk, count), taken_count), self.scorers)
            found = images.samples(self.full)
            if alpha is not None and is_settled(tally(found, alpha).kept, len(found), count):
                break
        return images.samples(self.full)

    def _from_images(self, start: int, stop: int, taken_count: int) -> list[bytes]:
        heavy, first = self.heavy, self.heavy.step_count - taken_count
        requests = [
            replace(request, start=ImageStart(self._pixels(file), first))
            for request, file in zip(
                full_requests(heavy, self.prompts)[start:stop], self.own.files[start:stop], strict=True
            )
        ]
        what = f"{taken_count} steps from images"
        return [one.png for one in heavy.generated(what, requests, start, len(self.prompts))]

    def _pixels(self, file: bytes) -> torch.Tensor:
        return decode_pixels(file, "image", self.heavy.spec.width_px, self.heavy.spec.height_px)


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
    profile = _empty(settings, study, inputs)
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
        light_share = round(mean_share(study.own.samples(study.full)), DIGITS)
        measured = replace(profile.measured, figures={"light_share": light_share})
        yield replace(profile, measured=measured, rows=tuple(rows[each] for each in sorted(rows)))
        holds[place] = bool(rows[share].allowed) if rule is None else rows[share].by(rule) is not None


def _empty(settings: ProfileSettings, study: HandoverStudy, inputs: StudyInputs) -> Profile:
    """Return the profile before any row."""
    light, heavy = study.light, study.heavy
    return Profile(
        ProfileKind.HANDOVER,
        ProfiledModel(
            model=heavy.spec.model,
            model_digest=heavy.generator.model.info.model_digest,
            reference=light.spec.model,
            reference_digest=light.generator.model.info.model_digest,
            encoder=inputs.encoder_name,
            encoder_digest=inputs.encoder_digest,
        ),
        ProfileConditions(heavy.step_count, guidance_scale=heavy.spec.guidance_scale),
        ProfilePromise(
            settings.alpha or ALPHA,
            settings.rule_of(ProfileKind.HANDOVER),
            " and ".join(scorer.name for scorer in study.scorers),
        ),
        source_of(settings),
    )
