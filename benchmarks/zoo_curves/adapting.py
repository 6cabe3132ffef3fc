"""Measure the effect of ControlNets and LoRAs over the steps of an image (Katz, figures 10 and 12).

The similarity of a ControlNet's residuals at adjacent steps shows whether the last step's may replace them. The
similarity of latents with and without a LoRA gives the latest patch by Katz's rule; the remaining style, when patched
that late, tests the rule.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from benchmarks.zoo_curves import plots
from benchmarks.zoo_curves.setting import CurveSetting, figure, numbers, triple
from lab.runs.measure import Figure, at_most, informative
from lab.runs.parts import PartResult
from zoo.drawing.conditions import edges, layout
from zoo.drawing.dataset import as_pixels
from zoo.drawing.scenes import TREATMENTS
from zoo.evaluate.bar_adapters import as_unit
from zoo.evaluate.estimates import Array, Estimate, estimate, mean, mean_difference, ratio
from zoo.evaluate.examination import needed
from zoo.evaluate.studio import BASE
from zoo.painting.controlnet import add_control, adjacent_cosines, generate_controlled, recorded_residuals
from zoo.painting.lora import add_style, generate_styled, latent_cosines
from zoo.painting.pipeline import load_pipeline
from zoo.painting.store import as_bytes
from zoo.train.loop import load_trained
from zoo.train.style_judge import CLASSES, StyleClassifier, style_scores

STEPS = 50
SWITCHED_ON_AFTER = (0, 5, 10, 15, 20, 30, 40, STEPS)
SHOWN_AFTER = (10, 20, 40)
ALIKE = 0.99
KEPT = 0.95
RESIDUALS_AT_ONCE = 8  # prompts: a step's residuals are some 100 kB an image, twice under guidance


def residuals_part(setting: CurveSetting) -> PartResult:
    studio = setting.studio
    count = min(setting.adapted, len(studio.prompts))
    told = {
        "edges": edges(as_unit(studio.prompts.drawn[:count])),
        "layout": layout(studio.prompts.scenes[:count]),
    }
    cosines = {name: residual_cosines(setting, f"tiny-controlnet-{name}", of) for name, of in told.items()}
    curves = {
        name: {"mean": numbers(values.mean(axis=1)), "lowest tenth": numbers(np.quantile(values, 0.1, axis=1))}
        for name, values in cosines.items()
    }
    plots.plot_residuals(curves, setting.plots / "controlnet-residuals.png")
    figures = [row for name, values in cosines.items() for row in residual_figures(name, values)]
    return PartResult(figures, {"prompts": count})


def residual_cosines(setting: CurveSetting, controlnet: str, conditions: torch.Tensor) -> Array:
    """Return cosines of each step's residuals with the step before's, in the conditional half: (steps - 1, prompts)."""
    studio = setting.studio
    scale = studio.defaults(BASE)[1]
    pipeline = add_control(studio.pipeline(BASE), needed(studio.weights / controlnet))
    captions = studio.prompts.captions[: len(conditions)]
    found = []
    for rows in torch.arange(len(conditions)).split(RESIDUALS_AT_ONCE):
        chosen = [captions[row] for row in rows.tolist()]
        with recorded_residuals(pipeline.controlnet) as residuals:
            generate_controlled(pipeline, chosen, rows.tolist(), conditions[rows], STEPS, scale)
        found.append(adjacent_cosines(residuals)[:, len(rows) :])
    cosines: Array = torch.cat(found, dim=1).double().numpy()
    return cosines


def residual_figures(name: str, cosines: Array) -> Iterator[Figure]:
    by_prompt = cosines.T[:, None]
    found = estimate(mean, by_prompt, within=False)
    yield figure(f"controlnet-residuals: {name}, cosine of adjacent steps", found, informative(), len(cosines))
    share = estimate(mean, (by_prompt > ALIKE).astype(float), within=False)
    yield figure(f"controlnet-residuals: {name}, adjacent steps alike (> {ALIKE})", share, informative())
    worst = estimate(lambda values: float(values.mean(axis=(0, 1)).min()), by_prompt, within=False)
    yield figure(f"controlnet-residuals: {name}, mean cosine of the least alike step", worst, informative())


def lora_part(setting: CurveSetting) -> PartResult:
    judge = load_trained(StyleClassifier(), setting.studio.work / "style-judge")
    assert isinstance(judge, StyleClassifier)
    curves: dict[str, Any] = {}
    figures: list[Figure] = []
    for style in TREATMENTS:
        cosines, strength, seen = switched_on_late(setting, style, judge)
        curves[style] = {
            "cosine": numbers(cosines.mean(axis=0)),
            "strength": {step: triple(estimate(mean, values)) for step, values in strength.items()},
            "in the style": {step: triple(estimate(mean, values)) for step, values in seen.items()},
        }
        figures += lora_figures(style, cosines, strength, seen)
    plots.plot_loras(curves, setting.plots / "lora-switch.png")
    return PartResult(figures, {"prompts": setting.adapted})


def switched_on_late(
    setting: CurveSetting, style: str, judge: StyleClassifier
) -> tuple[Array, dict[int, Array], dict[int, Array]]:
    """Return the effect of switching the LoRA on late.

    First the cosine of the latents with and without it after each step (prompts, steps); then, by the step after which
    it is switched on, the style's probability, and whether it is the likeliest: (prompts, 1).
    """
    studio = setting.studio
    count = min(setting.adapted, len(studio.prompts))
    lora = f"tiny-lora-{style}"
    pipeline = load_pipeline(needed(studio.weights / BASE))
    add_style(pipeline, needed(studio.weights / lora), lora)
    captions, scale = list(studio.prompts.captions[:count]), studio.defaults(BASE)[1]
    strength, seen, latents = {}, {}, {}
    for after in SWITCHED_ON_AFTER:
        painted = generate_styled(pipeline, lora, captions, list(range(count)), STEPS, scale, 1.0, after)
        latents[after] = painted.latents
        scores = style_scores(judge, as_pixels(as_bytes(painted.pixels)))
        strength[after] = scores[:, CLASSES.index(style)].double().numpy()[:, None]
        seen[after] = (scores.argmax(dim=1) == CLASSES.index(style)).double().numpy()[:, None]
    cosines = latent_cosines(latents[0], latents[STEPS]).T.double().numpy()
    return cosines, strength, seen


def lora_figures(style: str, cosines: Array, strength: dict[int, Array], seen: dict[int, Array]) -> Iterator[Figure]:
    name = f"lora-switch: {style}"
    alike = int((np.minimum.accumulate(cosines.mean(axis=0)) > ALIKE).sum())
    yield Figure(f"{name}, steps over which latents stay alike (> {ALIKE})", alike, informative("steps"))
    whole = strength[0].mean()
    lasting = [step for step in SWITCHED_ON_AFTER if strength[step].mean() >= KEPT * whole]
    latest = max((step for step in lasting if all(s in lasting for s in SWITCHED_ON_AFTER if s <= step)), default=0)
    kept_name = f"{name}, latest switch tried that keeps {KEPT:g} of the style's strength"
    yield Figure(kept_name, latest, informative("steps"))
    rises = [pair for pair in pairwise(SWITCHED_ON_AFTER) if _rise(*(strength[after] for after in pair)).low > 0.0]
    yield Figure(f"{name}, later switches that make it stronger", len(rises), at_most(0), len(strength[0]))
    for after in SHOWN_AFTER:
        kept = estimate(ratio, strength[after], strength[0])
        yield figure(f"{name}, strength kept when switched on after {after}", kept, informative())
    yield figure(f"{name}, in the style from the start", estimate(mean, seen[0]), informative())


def _rise(before: Array, after: Array) -> Estimate:
    """Return the rise with an interval that holds for all switches together (Bonferroni)."""
    confidence = 1.0 - 0.05 / (len(SWITCHED_ON_AFTER) - 1)
    return estimate(mean_difference, after, before, confidence=confidence)
