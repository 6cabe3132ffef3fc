"""The bar that the zoo is held to: each part's figures, with their goals and 95 % intervals, on held-out prompts.

    rows = measure(Studio(weights, work, count=256, seeds=3), ["heavy", "light"])

Every figure is of exported weights. What cannot be measured, because something it needs is not there, is a row that
says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from pentimento.domain.errors import NotFound
from zoo.evaluate.estimates import Array, Estimate, estimate, mean, ratio
from zoo.evaluate.examination import Marks, attribute_names
from zoo.evaluate.studio import Studio


@dataclass(frozen=True)
class Goal:
    """Where a figure is to lie; with `surely` its whole interval, which is what beyond the noise means."""

    at_least: float | None = None
    at_most: float | None = None
    surely: bool = False

    def met_by(self, figure: Estimate) -> bool:
        low, high = (figure.low, figure.high) if self.surely else (figure.value, figure.value)
        enough = self.at_least is None or (low > self.at_least if self.surely else low >= self.at_least)
        return enough and (self.at_most is None or (high < self.at_most if self.surely else high <= self.at_most))


@dataclass(frozen=True)
class Row:
    """A figure of the bar; without a goal it is shown beside the others and decides nothing.

    `figure` is None where it could not be measured, and `missing` says why. `samples` are JSON values, one a prompt.
    """

    part: str
    name: str
    figure: Estimate | None
    goal: Goal | None = None
    unit: str = ""
    samples: tuple[Any, ...] = ()
    missing: str = ""

    @property
    def ok(self) -> bool:
        return self.goal is None or (self.figure is not None and self.goal.met_by(self.figure))


Measurement = Callable[[Studio], Iterable[Row]]

# Every part of the bar and what measures it, imported when it is asked for.
PARTS = {
    "dual-encoder": ("zoo.evaluate.bar_models", "dual_encoder_rows"),
    "autoencoder": ("zoo.evaluate.bar_models", "autoencoder_rows"),
    "heavy": ("zoo.evaluate.bar_models", "heavy_rows"),
    "heavy-steps": ("zoo.evaluate.bar_models", "heavy_steps_rows"),
    "light": ("zoo.evaluate.bar_models", "light_rows"),
    "light-speed": ("zoo.evaluate.bar_models", "light_speed_rows"),
    "flow": ("zoo.evaluate.bar_models", "flow_rows"),
    "controlnet-edges": ("zoo.evaluate.bar_adapters", "edges_rows"),
    "controlnet-layout": ("zoo.evaluate.bar_adapters", "layout_rows"),
    "lora-neon": ("zoo.evaluate.bar_adapters", "neon_rows"),
    "lora-blueprint": ("zoo.evaluate.bar_adapters", "blueprint_rows"),
    "lora-mosaic": ("zoo.evaluate.bar_adapters", "mosaic_rows"),
    "discriminator": ("zoo.evaluate.bar_adapters", "discriminator_rows"),
}


def measure(studio: Studio, parts: Iterable[str], told: Callable[[str], None] = print) -> list[Row]:
    """The rows of these parts, in order; `told` hears what is being done and how long it took."""
    rows: list[Row] = []
    for part in parts:
        started = time.monotonic()
        found = list(_rows_of(studio, part))
        rows += found
        state = f"missing: {found[0].missing}" if found[0].missing else f"{len(found)} figures"
        told(f"{part}: {state}, {time.monotonic() - started:.0f} s")
    return rows


def _rows_of(studio: Studio, part: str) -> Iterator[Row]:
    module, function = PARTS[part]
    try:
        rows = list(getattr(import_module(module), function)(studio))
    except NotFound as error:
        rows = [Row(part, part, None, Goal(), missing=error.message)]
    yield from rows


# Rows that several parts have.

# Of a figure that missed the goal which it had before it was measured: what is goal now stands in another row.
OLD_GOAL = ", goal set before measuring"


def attribute_rows(part: str, marks: Marks, goal: Goal | None, suffix: str = "") -> Iterator[Row]:
    """One an attribute: the share that the judge sees of what was asked for. A sample is `asked:seen by seed`."""
    for name in attribute_names():
        right, asked = marks.attribute(name)
        if asked.any():
            samples = tuple(
                f"{a[0]}:{''.join(map(str, r))}" for a, r in zip(asked.tolist(), right.tolist(), strict=True)
            )
            yield Row(part, f"{name}{suffix}", estimate(ratio, right, asked), goal, samples=samples)


def clip_score_rows(part: str, marks: Marks, suffix: str = "") -> Iterator[Row]:
    """One an encoder: the mean of its scores."""
    for name, scores in marks.clip_scores.items():
        yield mean_row(part, f"{name}{suffix}", scores)


def clip_ratio_rows(part: str, of: str, marks: Marks, others: Marks, goal: Goal | None = None) -> Iterator[Row]:
    """One an encoder: its mean score as a share of that of others, paired; the goal is held by each of them."""
    for name, scores in marks.clip_scores.items():
        yield ratio_row(part, f"{name}, share of {of}", scores, others.clip_scores[name], goal)


def mean_row(part: str, name: str, values: Array, goal: Goal | None = None, unit: str = "") -> Row:
    """The mean of values (prompts, seeds), which are its samples."""
    return Row(part, name, estimate(mean, values), goal, unit, rounded(values))


def ratio_row(part: str, name: str, values: Array, others: Array, goal: Goal | None = None) -> Row:
    """The ratio of two means, paired, 0 to nothing at all; a sample is the values and then the others of a prompt."""
    figure = estimate(ratio, values, others) if others.any() else Estimate(0.0, 0.0, 0.0)
    return Row(part, name, figure, goal, samples=pairs(values, others))


def difference_row(part: str, name: str, values: Array, others: Array, goal: Goal | None = None) -> Row:
    """The mean difference of pairs; a sample is the values and then the others of a prompt."""
    return Row(part, name, estimate(mean, values - others), goal, samples=pairs(values, others))


def rounded(values: Array) -> tuple[Any, ...]:
    """Samples (prompts, seeds) as JSON takes them; with one seed, plain numbers."""
    return tuple(row[0] if len(row) == 1 else row for row in np.round(values.astype(float), 4).tolist())


def pairs(values: Array, others: Array) -> tuple[Any, ...]:
    return tuple(list(pair) for pair in zip(rounded(values), rounded(others), strict=True))
