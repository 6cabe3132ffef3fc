"""Quality against the number of steps, and on how many prompts the light model is as good as the heavy one."""

from collections.abc import Iterator

import numpy as np

from benchmarks.parts import PartResult
from benchmarks.report import Figure, between, informative, surely_above
from benchmarks.zoo_curves import plots
from benchmarks.zoo_curves.setting import METRICS, Setting, figure, numbers, triple, values_of
from zoo.evaluate.bar_models import as_good_by_prompt
from zoo.evaluate.estimates import Array, estimate, mean, mean_difference
from zoo.evaluate.examination import Marks
from zoo.evaluate.studio import BASE, LIGHT

STEPS = (5, 10, 15, 20, 30, 50)
FEW = 10
THINGS = ("one thing", "two things", "three things")


def steps_part(setting: Setting) -> PartResult:
    marks = {model: {steps: setting.studio.marks(model, steps) for steps in STEPS} for model in (BASE, LIGHT)}
    curves = {
        model: {
            metric: {steps: triple(estimate(mean, values_of(found, metric))) for steps, found in by_steps.items()}
            for metric in METRICS
        }
        for model, by_steps in marks.items()
    }
    plots.plot_steps(curves, setting.plots / "steps.png")
    figures = [row for model, by_steps in marks.items() for row in step_figures(model, by_steps)]
    return PartResult(figures, {"prompts": len(setting.studio.prompts), "curves": curves})


def step_figures(model: str, by_steps: dict[int, Marks]) -> Iterator[Figure]:
    many, few = by_steps[max(STEPS)], by_steps[FEW]
    target = surely_above(0.0) if model == BASE else informative()
    compared = {metric: (values_of(many, metric), values_of(few, metric)) for metric in METRICS}
    compared["judge's log-likelihood"] = many.log_likelihood, few.log_likelihood
    for metric, (after, before) in compared.items():
        gain = estimate(mean_difference, after, before)
        samples = numbers(np.concatenate([after, before], axis=1))
        yield figure(f"steps: {model}, {metric}, {max(STEPS)} minus {FEW}", gain, target, samples)


def as_good_part(setting: Setting) -> PartResult:
    """By the share of the attributes asked for that the judge sees, the mean over a prompt's seeds."""
    studio = setting.wide
    light, heavy = studio.marks(LIGHT).score, studio.marks(BASE).score
    as_good = as_good_by_prompt(light, heavy)
    counts = np.array([len(scene.things) for scene in studio.prompts.scenes])
    by_count = {
        name: triple(estimate(mean, as_good[counts == number + 1]))
        for number, name in enumerate(THINGS)
        if (counts == number + 1).any()
    }
    difference = (light - heavy).mean(axis=1)
    curves = {"by number of things": by_count, "light minus heavy": numbers(np.sort(difference))}
    plots.plot_as_good(curves, setting.plots / "light-as-good.png")
    figures = list(as_good_figures(light, heavy, as_good))
    return PartResult(figures, {"prompts": len(as_good), "seeds": studio.seed_count, "curves": curves})


def as_good_figures(light: Array, heavy: Array, as_good: Array) -> Iterator[Figure]:
    samples = [[*mine, *theirs] for mine, theirs in zip(numbers(light), numbers(heavy), strict=True)]
    name = "light-as-good: prompts on which light is as good as heavy or better"
    yield figure(name, estimate(mean, as_good), between(0.2, 0.4), samples)
    each = (light >= heavy).astype(float)
    name = "light-as-good: pictures of light that are as good as heavy's or better"
    yield figure(name, estimate(mean, each), informative())
    better = (light.mean(axis=1) > heavy.mean(axis=1) + 1e-9).astype(float)[:, None]
    yield figure("light-as-good: prompts on which light is better", estimate(mean, better), informative())
