"""Estimate the value of a router's confidences on prompts that both models generated, with bootstrap intervals over
prompts.

A resample is a row of weights (how often each prompt was drawn), so that comparisons stay paired, and each resample has
its own thresholds: a deferral rate is a share of its prompts.
"""

import numpy as np

from lab.runs.intervals import CONFIDENCE
from lab.runs.measure import Interval
from zoo.evaluate.estimates import Array

METHOD = "bootstrap over prompts"


def served_values(confidence: Array, light: Array, heavy: Array, rate: float, weights: Array) -> Array:
    """Return by resample the mean value of the served images if that share of prompts, with the least confidence, is
    deferred."""
    order = np.argsort(confidence, kind="stable")
    drawn = weights[:, order]
    deferred = deferred_weights(drawn, rate)
    total: Array = (deferred * heavy[order] + (drawn - deferred) * light[order]).sum(axis=1)
    return total / weights.sum(axis=1)


def deferred_weights(drawn: Array, rate: float) -> Array:
    """Return the part of each weight, least confident first, within the first `rate` of their sum."""
    before = drawn.cumsum(axis=1) - drawn
    found: Array = np.clip(rate * drawn.sum(axis=1, keepdims=True) - before, 0.0, drawn)
    return found


def figure_of(values: Array) -> tuple[float, Interval]:
    """Return the first resample's value, which has every prompt once, and the interval of the others."""
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(values[1:], (tail, 1.0 - tail))
    return float(values[0]), Interval(round(float(low), 5), round(float(high), 5), METHOD)
