"""Measure quality against the number of steps, and the share of prompts with a light image as good as the heavy one."""

from collections.abc import Iterator

import numpy as np

from benchmarks.zoo_curves import plots
from benchmarks.zoo_curves.setting import METRICS, CurveSetting, figure, numbers, triple, values_of
from lab.runs.measure import Figure, between, informative, surely_above
from lab.runs.parts import PartResult
from zoo.evaluate.bar_models import as_good_by_prompt
from zoo.evaluate.detail import fine_detail
from zoo.evaluate.estimates import Array, estimate, mean, mean_difference
from zoo.evaluate.studio import BASE, LIGHT, Studio

STEPS = (5, 10, 15, 20, 30, 50)
FEW = 10
THINGS = ("one thing", "two things", "three things")


DETAIL = "distance of patches"  # from reconstructions'
STEP_METRICS = (*METRICS, DETAIL)


def steps_part(setting: CurveSetting) -> PartResult:
    found = {model: {steps: _measured(setting.studio, model, steps) for steps in STEPS} for model in (BASE, LIGHT)}
    curves = {
        model: {
            metric: {steps: triple(estimate(mean, values[metric])) for steps, values in by_steps.items()}
            for metric in STEP_METRICS
        }
        for model, by_steps in found.items()
    }
    plots.plot_steps(curves, setting.plots / "steps.png")
    figures = [row for model, by_steps in found.items() for row in step_figures(model, by_steps)]
    return PartResult(figures, {"prompts": len(setting.studio.prompts)})


def _measured(studio: Studio, model: str, steps: int) -> dict[str, Array]:
    """Return values by metric, (prompts, seeds). Detail measures further gains once all attributes are right."""
    marks = studio.marks(model, steps)
    values = {metric: values_of(marks, metric) for metric in METRICS}
    return values | {DETAIL: fine_detail(studio.generate(model, steps), studio.rebuilt)}


def step_figures(model: str, by_steps: dict[int, dict[str, Array]]) -> Iterator[Figure]:
    """Report the gain of the most steps over few."""
    for metric in STEP_METRICS:
        many, few = by_steps[max(STEPS)][metric], by_steps[FEW][metric]
        detail = metric == DETAIL
        gain = estimate(mean_difference, *((few, many) if detail else (many, few)))
        told = f"{FEW} minus {max(STEPS)}" if detail else f"{max(STEPS)} minus {FEW}"
        target = surely_above(0.0) if detail and model == BASE else informative()
        yield figure(f"steps: {model}, {metric}, {told}", gain, target, len(many))


def as_good_part(setting: CurveSetting) -> PartResult:
    """Compare the share of requested attributes that the scorer sees, seed by seed: a cascade sees one image."""
    studio = setting.wide
    light, heavy = studio.marks(LIGHT).score, studio.marks(BASE).score
    as_good = (light >= heavy).astype(float)
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
    return PartResult(figures, {"prompts": len(as_good), "seeds": studio.seed_count})


def as_good_figures(light: Array, heavy: Array, as_good: Array) -> Iterator[Figure]:
    name = "light-as-good: prompts on which light is as good as heavy or better, seed by seed"
    yield figure(name, estimate(mean, as_good), between(0.2, 0.4), len(light))
    by_prompt = as_good_by_prompt(light, heavy)
    yield figure("light-as-good: prompts on which the mean over its seeds is", estimate(mean, by_prompt), informative())
    better = (light.mean(axis=1) > heavy.mean(axis=1) + 1e-9).astype(float)[:, None]
    yield figure("light-as-good: prompts on which light is better", estimate(mean, better), informative())
