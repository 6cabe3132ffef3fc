"""Measure the quality of an image that starts from another prompt's, by the prompts' similarity and the starting step.

From a latent: the donor's after K steps (NIRVANA). From an image: the donor's image by the heavy model, noised to the
level before step k and finished by the light one (MoDM). Donor, receiver and the receiver's image from scratch by the
heavy model, the reference, have the same seed: only the start differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.zoo_curves import plots
from benchmarks.zoo_curves.batch_sampler import BatchSampler
from benchmarks.zoo_curves.caption_pairs import KINDS, CaptionPairs, caption_pairs
from benchmarks.zoo_curves.setting import METRICS, CurveSetting, figure, numbers, triple, values_of
from lab.runs.measure import Figure, at_most, informative, surely_above
from lab.runs.parts import PartResult
from zoo.evaluate.estimates import CONFIDENCE, Array, Estimate, estimate
from zoo.evaluate.examination import Marks
from zoo.evaluate.studio import BASE, LIGHT

STEPS = 50
LATENT_STEPS = (5, 10, 15, 20, 25)
IMAGE_STEPS = (5, 10, 15, 20, 25, 30)
FIFTHS = 5
RESAMPLES = 4_000
NEAR_CAPTION, NEAR_IMAGE = "text to text", "text to image"


@dataclass(frozen=True)
class Resumes:
    """Hold similarities and metrics as (receivers, kinds of donor); a metric from scratch is (receivers, 1)."""

    similarity: Array
    nearness: str
    marks: Mapping[int, Mapping[str, Array]]  # starting step, then by metric; 0 is from scratch
    scratch: Mapping[str, Array]  # by the heavy model

    def whole(self, metric: str) -> Array:
        """Return the heavy model's metric from scratch, once for each donor."""
        return np.broadcast_to(self.scratch[metric], self.similarity.shape)

    def change(self, step: int, metric: str) -> Array:
        """Return the change against heavy from scratch."""
        changed: Array = self.marks[step][metric] - self.scratch[metric]
        return np.broadcast_to(changed, self.similarity.shape)

    @property
    def steps(self) -> list[int]:
        return [step for step in self.marks if step > 0]

    def fifths(self) -> tuple[Array, Array]:
        """Return each pair's fifth by similarity, 0 the lowest, and the bounds of the fifths."""
        bounds = np.quantile(self.similarity, np.linspace(0.0, 1.0, FIFTHS + 1))
        return np.searchsorted(bounds[1:-1], self.similarity, side="right"), bounds


def latent_part(setting: CurveSetting) -> PartResult:
    resumes = resumed_latents(setting, caption_pairs(setting.receivers))
    return _part(setting, "resume-latent", resumes, range(FIFTHS))


def image_part(setting: CurveSetting) -> PartResult:
    """Measure starts from images.

    Of the steps only the least similar fifth is tested: skipping more of the light model's steps keeps more of the
    heavy one's image, which is a loss only if that image is unrelated.
    """
    resumes = resumed_images(setting, caption_pairs(setting.receivers))
    return _part(setting, "resume-image", resumes, range(1))


def resumed_latents(setting: CurveSetting, pairs: CaptionPairs) -> Resumes:
    studio = setting.studio
    sampler = BatchSampler(studio.weights / BASE, STEPS, studio.defaults(BASE)[1])
    captions, donors, seeds = pairs.flat()
    _, held = sampler.denoise(sampler.noise(seeds), donors, last_step=max(LATENT_STEPS), kept=LATENT_STEPS)
    scratch = from_scratch(setting, BASE, pairs)
    marks = {0: scratch}
    for step in LATENT_STEPS:
        latents, _ = sampler.denoise(held[step], captions, first_step=step)
        marks[step] = _marked(setting, pairs, sampler.decode(latents))
    return Resumes(text_similarity(setting, pairs), NEAR_CAPTION, marks, scratch)


def resumed_images(setting: CurveSetting, pairs: CaptionPairs) -> Resumes:
    studio = setting.studio
    sampler = BatchSampler(studio.weights / LIGHT, STEPS, studio.defaults(LIGHT)[1])
    captions, donors, seeds = pairs.flat()
    images = studio.generate_these(BASE, donors, seeds, STEPS)
    marks = {0: from_scratch(setting, LIGHT, pairs)}
    for step in IMAGE_STEPS:
        latents, _ = sampler.denoise(sampler.renoised(images, seeds, step), captions, first_step=step)
        marks[step] = _marked(setting, pairs, sampler.decode(latents))
    similarity = studio.examiner.clip_scores(images, captions).view(len(pairs), len(KINDS)).double().numpy()
    return Resumes(similarity, NEAR_IMAGE, marks, from_scratch(setting, BASE, pairs))


def text_similarity(setting: CurveSetting, pairs: CaptionPairs) -> Array:
    """Return cosines of the dual encoder's text embeddings: (receivers, kinds)."""
    captions, donors, _ = pairs.flat()
    asked, painted = (setting.studio.examiner.embed_texts(texts) for texts in (captions, donors))
    similarity: Array = (asked * painted).sum(dim=1).view(len(pairs), len(KINDS)).double().numpy()
    return similarity


def from_scratch(setting: CurveSetting, model: str, pairs: CaptionPairs) -> dict[str, Array]:
    pixels = setting.studio.generate_these(model, list(pairs.captions), list(pairs.seeds), STEPS)
    return _by_metric(setting.studio.examiner.mark(pixels[:, None], pairs.captions, pairs.asked))


def _marked(setting: CurveSetting, pairs: CaptionPairs, pixels: Any) -> dict[str, Array]:
    grid = pixels.unflatten(0, (len(pairs), len(KINDS)))
    return _by_metric(setting.studio.examiner.mark(grid, pairs.captions, pairs.asked))


def _by_metric(marks: Marks) -> dict[str, Array]:
    return {metric: values_of(marks, metric) for metric in METRICS}


def _part(setting: CurveSetting, part: str, resumes: Resumes, tested_fifths: Sequence[int]) -> PartResult:
    curves = curves_of(resumes)
    plots.plot_resumes(curves, resumes.nearness, setting.plots / f"{part}.png")
    figures = [row for metric in METRICS for row in figures_of(part, resumes, metric, tested_fifths)]
    return PartResult(figures, {"receivers": len(resumes.similarity), "similarity": resumes.nearness})


def in_fifth(values: Array, fifths: Array, number: int) -> float:
    """Return the mean of a fifth; 0 if a small resample has none of it."""
    chosen = values[fifths == number]
    return float(chosen.mean()) if chosen.size else 0.0


def fifth_mean(values: Array, fifths: Array, number: int) -> Estimate:
    return estimate(lambda v, f: in_fifth(v, f, number), values, fifths, within=False)


def fifth_ratio(values: Array, others: Array, fifths: Array, number: int) -> Estimate:
    """Return the ratio of two means over the same pairs."""
    return estimate(
        lambda v, o, f: in_fifth(v, f, number) / (in_fifth(o, f, number) or 1.0), values, others, fifths, within=False
    )


def gain(values: Array, number: int, others: Array, other: int, fifths: Array, **options: Any) -> Estimate:
    """Return the mean of `values` in one fifth less that of `others` in the other; both may be the same in either."""
    return estimate(
        lambda v, o, f: in_fifth(v, f, number) - in_fifth(o, f, other), values, others, fifths, within=False, **options
    )


def curves_of(resumes: Resumes) -> list[dict[str, Any]]:
    """Return each fifth's bounds, size, and metrics: of heavy from scratch, and the change by step."""
    fifths, bounds = resumes.fifths()
    curves = []
    for number in range(FIFTHS):
        curve: dict[str, Any] = {"similarity": numbers(bounds[number : number + 2])}
        curve["pairs"] = int((fifths == number).sum())
        for metric in METRICS:
            curve[f"{metric} from scratch"] = triple(fifth_mean(resumes.whole(metric), fifths, number))
            changes = {step: resumes.change(step, metric) for step in resumes.marks}
            curve[metric] = {step: triple(fifth_mean(values, fifths, number)) for step, values in changes.items()}
        curves.append(curve)
    return curves


def figures_of(part: str, resumes: Resumes, metric: str, tested_fifths: Sequence[int]) -> Iterator[Figure]:
    fifths, _ = resumes.fifths()
    by_step = {step: resumes.change(step, metric) for step in resumes.steps}
    first, last = resumes.steps[0], resumes.steps[-1]
    least, most = 0, FIFTHS - 1
    name = f"{part}: {metric}"
    broken = breaks(by_step, fifths, tested_fifths)
    order_name = f"{name}, breaks of its order by similarity and by step"
    yield Figure(order_name, len(broken), at_most(0), resumes.similarity.size)
    alike = gain(by_step[last], most, by_step[last], least, fifths)
    yield figure(f"{name} at {last}, most alike fifth minus least alike", alike, surely_above(0.0))
    skipped = gain(by_step[first], least, by_step[last], least, fifths)
    yield figure(f"{name}, least alike fifth, at {first} minus at {last}", skipped, surely_above(0.0))
    for number, which in ((most, "most"), (least, "least")):
        for step in (first, last):
            kept = fifth_ratio(resumes.marks[step][metric], resumes.whole(metric), fifths, number)
            yield figure(f"{name} at {step}, {which} alike fifth, share of heavy's from scratch", kept, informative())


def breaks(by_step: Mapping[int, Array], fifths: Array, tested_fifths: Sequence[int]) -> list[str]:
    """Return where quality (or its change) falls with similarity at one step, or rises with the step in one fifth,
    beyond noise.

    Intervals hold for all comparisons together (Bonferroni).
    """
    rising = [(step, number) for step in by_step for number in range(FIFTHS - 1)]
    falling = [(pair, number) for pair in pairwise(by_step) for number in tested_fifths]
    confidence = 1.0 - (1.0 - CONFIDENCE) / (len(rising) + len(falling))
    options: dict[str, Any] = {"confidence": confidence, "resamples": RESAMPLES}
    found = {}
    for step, number in rising:
        values = by_step[step]
        found[f"at {step}: fifth {number} to {number + 1}"] = gain(
            values, number + 1, values, number, fifths, **options
        )
    for (before, after), number in falling:
        found[f"fifth {number}: {before} to {after}"] = gain(
            by_step[before], number, by_step[after], number, fifths, **options
        )
    return [name for name, change in found.items() if change.high < 0.0]
