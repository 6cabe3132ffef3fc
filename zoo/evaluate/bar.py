"""Measure the zoo's bar: each part's figures, with goals and 95 % intervals, on held-out prompts.

    rows = measure(Studio(weights, work, count=256, seeds=3), ["heavy", "light"])

Every figure is of exported weights. A figure that lacks a prerequisite becomes a row with that reason.
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
    """Bound a figure; with `surely` its whole interval, that is beyond noise."""

    at_least: float | None = None
    at_most: float | None = None
    surely: bool = False

    def met_by(self, figure: Estimate) -> bool:
        low, high = (figure.low, figure.high) if self.surely else (figure.value, figure.value)
        enough = self.at_least is None or (low > self.at_least if self.surely else low >= self.at_least)
        return enough and (self.at_most is None or (high < self.at_most if self.surely else high <= self.at_most))


@dataclass(frozen=True)
class Row:
    """Hold a figure of the bar; without a goal it decides nothing.

    `figure` is None if it could not be measured, and `missing` is the reason. `samples` are JSON values, one a prompt.
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

# the bar's parts and their measuring functions, imported on use
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
    """Return the parts' rows, in order; `told` receives the progress with durations."""
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


# rows of several parts

# marks the original goal of a figure that missed it; its present goal is in another row
OLD_GOAL = ", goal set before measuring"


def attribute_rows(part: str, marks: Marks, goal: Goal | None, suffix: str = "") -> Iterator[Row]:
    """Yield a row per attribute: the scorer's share of requested values. A sample is `asked:seen by seed`."""
    for name in attribute_names():
        right, asked = marks.attribute(name)
        if asked.any():
            samples = tuple(
                f"{a[0]}:{''.join(map(str, r))}" for a, r in zip(asked.tolist(), right.tolist(), strict=True)
            )
            yield Row(part, f"{name}{suffix}", estimate(ratio, right, asked), goal, samples=samples)


def clip_score_rows(part: str, marks: Marks, suffix: str = "") -> Iterator[Row]:
    """Yield a row per encoder: the mean of its scores."""
    for name, scores in marks.clip_scores.items():
        yield mean_row(part, f"{name}{suffix}", scores)


def clip_ratio_rows(part: str, of: str, marks: Marks, others: Marks, goal: Goal | None = None) -> Iterator[Row]:
    """Yield a row per encoder: its mean score as a share of the others', paired; the goal applies to each."""
    for name, scores in marks.clip_scores.items():
        yield ratio_row(part, f"{name}, share of {of}", scores, others.clip_scores[name], goal)


def mean_row(part: str, name: str, values: Array, goal: Goal | None = None, unit: str = "") -> Row:
    """Return the mean of values (prompts, seeds), which are its samples."""
    return Row(part, name, estimate(mean, values), goal, unit, rounded(values))


def ratio_row(part: str, name: str, values: Array, others: Array, goal: Goal | None = None) -> Row:
    """Return the ratio of two means, paired, with 0 for nothing; a sample is a prompt's values and then the others."""
    figure = estimate(ratio, values, others) if others.any() else Estimate(0.0, 0.0, 0.0)
    return Row(part, name, figure, goal, samples=pairs(values, others))


def difference_row(part: str, name: str, values: Array, others: Array, goal: Goal | None = None) -> Row:
    """Return the mean difference of pairs; a sample is a prompt's values and then the others."""
    return Row(part, name, estimate(mean, values - others), goal, samples=pairs(values, others))


def rounded(values: Array) -> tuple[Any, ...]:
    """Return samples (prompts, seeds) as JSON values; with one seed, plain numbers."""
    return tuple(row[0] if len(row) == 1 else row for row in np.round(values.astype(float), 4).tolist())


def pairs(values: Array, others: Array) -> tuple[Any, ...]:
    return tuple(list(pair) for pair in zip(rounded(values), rounded(others), strict=True))
