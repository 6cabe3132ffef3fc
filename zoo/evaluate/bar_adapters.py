"""Measure the bar's figures of ControlNets, LoRA styles and the discriminator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from pentimento.diffusion.discriminators.calibration import auroc, calibration_error
from zoo.drawing.conditions import edge_f1, edges, layout, place_iou
from zoo.drawing.dataset import as_pixels
from zoo.evaluate.bar import OLD_GOAL, Goal, Row, attribute_rows, difference_row, mean_row, pairs, ratio_row, rounded
from zoo.evaluate.calibration import margins, read_calibration
from zoo.evaluate.estimates import Array, estimate, mean
from zoo.evaluate.examination import needed
from zoo.evaluate.studio import BASE, LIGHT, Studio
from zoo.train.discriminator import MIX
from zoo.train.finder import Finder, find_things
from zoo.train.loop import load_trained
from zoo.train.parts import check_trained
from zoo.train.style_judge import CLASSES, StyleClassifier, style_scores

# with and without an adapter; more steps change heavy's images little
STEPS = 20
OF_THE_CEILING = Goal(at_least=0.7)
BEYOND_NOISE = Goal(at_least=0.0, surely=True)
WELL_ABOVE = Goal(at_least=1.5)  # the original goal for edges: times the run without the ControlNet
CALIBRATED = Goal(at_most=0.1)
Agreement = Callable[[Tensor], Array]  # uint8 images (prompts, seeds, ...) with their conditions to (prompts, seeds)


def as_unit(images: Tensor) -> Tensor:
    """Return uint8 images as floats in 0..1."""
    return images.float() / 255.0


def by_image(studio: Studio, measure: Callable[[Tensor, Tensor], Tensor], wanted: Tensor) -> Agreement:
    """Apply `measure(images in 0..1 (n, ...), wanted (n, ...))` to each image; `wanted` has one per prompt."""

    def agreement(images: Tensor) -> Array:
        prompts, seeds = images.shape[:2]
        flat = measure(as_unit(images.flatten(0, 1)), wanted.repeat_interleave(seeds, dim=0))
        found: Array = flat.view(prompts, seeds).double().numpy()
        return found

    return agreement


def edges_rows(studio: Studio) -> Iterator[Row]:
    """Yield rows with the drawings' edges as condition: over the whole image, and over the objects only."""
    part = "controlnet-edges"
    wanted = edges(as_unit(studio.prompts.drawn))
    generated = studio.generate_controlled("tiny-controlnet-edges", wanted, STEPS)
    agreement = by_image(studio, lambda images, told: edge_f1(edges(images), told), wanted)
    yield from _obedience_rows(studio, part, "edge F1", generated, agreement)
    without = agreement(studio.generate(BASE, STEPS))
    yield ratio_row(part, f"edge F1, times the run without it{OLD_GOAL}", agreement(generated), without, WELL_ABOVE)
    things = (studio.prompts.coverage > 0).float()[:, None]
    both = torch.cat([wanted, things], dim=1)
    on_things = by_image(studio, lambda images, told: edge_f1(edges(images), told[:, :1], within=told[:, 1:]), both)
    yield from _obedience_rows(studio, part, "edge F1 on the things", generated, on_things)
    yield from attribute_rows(part, studio.mark(generated), None)


def layout_rows(studio: Studio) -> Iterator[Row]:
    """Yield rows with the objects' places and sizes as condition; a finder trained on drawings only locates the
    generated ones."""
    part = "controlnet-layout"
    check_trained(studio.work, "finder", f"--work {studio.work}")
    finder = load_trained(Finder(), studio.work / "finder")
    generated = studio.generate_controlled("tiny-controlnet-layout", layout(studio.prompts.scenes), STEPS)
    agreement = by_image(
        studio, lambda images, told: place_iou(find_things(finder, images), told), studio.prompts.coverage
    )
    yield from _obedience_rows(studio, part, "IoU of the things' places", generated, agreement)
    yield from attribute_rows(part, studio.mark(generated), None)


def _obedience_rows(studio: Studio, part: str, name: str, generated: Tensor, agreement: Agreement) -> Iterator[Row]:
    obeyed, ceiling, without = agreement(generated), agreement(studio.rebuilt), agreement(studio.generate(BASE, STEPS))
    judged = "on the things" not in name
    yield ratio_row(part, f"{name}, share of reconstructions'", obeyed, ceiling, OF_THE_CEILING if judged else None)
    gain = BEYOND_NOISE if judged else None
    yield difference_row(part, f"{name}, minus the run without it", obeyed, without, gain)
    closed = estimate(share_of_the_gap, obeyed, without, ceiling)
    yield Row(part, f"{name}, share of the gap between the run without it and reconstructions", closed)
    for values, which in ((obeyed, "with it"), (without, "without it"), (ceiling, "of reconstructions")):
        yield Row(part, f"{name}, {which}", estimate(mean, values))


def share_of_the_gap(values: Array, low: Array, high: Array) -> float:
    """Return the mean's position between the mean of `low`, 0, and that of `high`, 1."""
    return float((values.mean() - low.mean()) / (high.mean() - low.mean()))


def neon_rows(studio: Studio) -> Iterator[Row]:
    return style_rows(studio, "neon")


def blueprint_rows(studio: Studio) -> Iterator[Row]:
    return style_rows(studio, "blueprint")


def mosaic_rows(studio: Studio) -> Iterator[Row]:
    return style_rows(studio, "mosaic")


def style_rows(studio: Studio, style: str) -> Iterator[Row]:
    """Yield the share of images with the style, by a classifier trained on drawings only."""
    part = f"lora-{style}"
    check_trained(studio.work, "style-judge", f"--work {studio.work}")
    reader = load_trained(StyleClassifier(), studio.work / "style-judge")
    styled = studio.generate_styled(f"tiny-{part}", steps=STEPS)
    seen = sees_style(reader, styled, style)
    yield mean_row(part, "pictures in the style at weight 1", seen, Goal(at_least=0.9))
    yield mean_row(part, "pictures in the style without it", sees_style(reader, studio.generate(BASE, STEPS), style))
    yield from attribute_rows(part, studio.mark(styled), None)


def sees_style(reader: StyleClassifier, images: Tensor, style: str) -> Array:
    """Return 1.0 if the style is the likeliest, for uint8 images (prompts, seeds, ...): (prompts, seeds)."""
    likeliest = style_scores(reader, as_pixels(images.flatten(0, 1))).argmax(dim=1)
    seen: Array = (likeliest == CLASSES.index(style)).view(images.shape[:2]).double().numpy()
    return seen


def discriminator_rows(studio: Studio) -> Iterator[Row]:
    """Yield rows with drawings, and drawings after the autoencoder, as real; a sample is a prompt's confidences, (real,
    light)."""
    part = "discriminator"
    model = AutoModelForImageClassification.from_pretrained(needed(studio.weights / "tiny-discriminator")).eval()
    calibration = read_calibration(model)

    def confidence(images: Tensor) -> Array:
        found = margins(model, as_pixels(images.flatten(0, 1)))
        sure: Array = calibration.confidence(found).view(images.shape[:2]).double().numpy()
        return sure

    drawn, rebuilt = confidence(studio.prompts.drawn[:, None]), confidence(studio.rebuilt)
    light, heavy = confidence(studio.generate(LIGHT)), confidence(studio.generate(BASE))
    for real, name in ((drawn, "drawings"), (rebuilt, "reconstructions")):
        figure = estimate(ranks_above, real, light)
        yield Row(part, f"AUROC, {name} against light", figure, Goal(at_least=0.9), samples=pairs(real, light))
    error = estimate(error_at_even_odds, drawn, rebuilt, light)
    yield Row(part, "calibration error, real against light at even odds", error, CALIBRATED)
    above = (heavy > light).astype(float)
    goal = Goal(at_least=0.5, surely=True)
    yield Row(part, "heavy above light, same prompt and seed", estimate(mean, above), goal, samples=pairs(heavy, light))
    yield Row(part, "AUROC, heavy against light", estimate(ranks_above, heavy, light))
    as_good = studio.marks(LIGHT).score >= studio.marks(BASE).score
    figure = estimate(ranks_where, light, as_good)
    yield Row(part, "AUROC, light as good as heavy against light worse", figure, samples=rounded(as_good))


def ranks_above(higher: Array, lower: Array) -> float:
    return auroc(torch.tensor(higher).flatten(), torch.tensor(lower).flatten())


def ranks_where(scores: Array, positive: Array) -> float:
    """Return the AUROC of positive scores against the others; a half if there is only one kind."""
    if positive.all() or not positive.any():
        return 0.5
    return ranks_above(scores[positive], scores[~positive])


def error_at_even_odds(drawn: Array, rebuilt: Array, light: Array) -> float:
    """Return the expected calibration error with light at the same weight as both kinds of real together, which are
    weighted as in training."""
    kinds, shares = (drawn, rebuilt, light), (MIX[0], MIX[1], MIX[0] + MIX[1])
    weights = [torch.full((kind.size,), share / kind.size) for kind, share in zip(kinds, shares, strict=True)]
    real = [torch.full((kind.size,), kind is not light) for kind in kinds]
    confidence = torch.tensor(np.concatenate([kind.ravel() for kind in kinds]))
    return calibration_error(confidence, torch.cat(real), torch.cat(weights))
