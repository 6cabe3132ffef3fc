"""Hold every curve's setting, and the forms of figures and curves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.runs.measure import Figure, Interval, Target
from zoo.evaluate.estimates import Array, Estimate
from zoo.evaluate.examination import Marks
from zoo.evaluate.studio import Studio

METHOD = "bootstrap percentile over prompts"
METRICS = {"CLIPScore": "clip_score", "share of attributes": "score"}


@dataclass(frozen=True)
class CurveSetting:
    """Hold the setting: `studio` has one image a prompt, `wide` the images of `benchmarks.zoo_quality`; counts are of
    prompts."""

    studio: Studio
    wide: Studio
    receivers: int  # prompts for donors, one of each kind
    adapted: int  # prompts generated with adapters
    plots: Path


def values_of(marks: Marks, metric: str) -> Array:
    """Return CLIPScore or share of attributes: (prompts, seeds)."""
    values: Array = getattr(marks, METRICS[metric])
    return values


def figure(name: str, found: Estimate, target: Target, count: int = 0) -> Figure:
    interval = Interval(round(found.low, 5), round(found.high, 5), METHOD)
    return Figure(name, round(found.value, 5), target, count, interval)


def numbers(values: Array) -> list[Any]:
    """Return an array as JSON values."""
    rounded: list[Any] = np.round(np.asarray(values, float), 4).tolist()
    return rounded


def triple(found: Estimate) -> list[float]:
    """Return the figure and its interval."""
    return [round(value, 4) for value in (found.value, found.low, found.high)]
