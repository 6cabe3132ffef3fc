"""Plot the curves as small PNG files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from benchmarks.papers.plots import COLOURS, panels, save
from benchmarks.zoo_curves.setting import METRICS


def draw_line(axis: Axes, by_place: Mapping[int, Sequence[float]], colour: Any, label: str, style: str = "-") -> None:
    """Draw figures with their intervals, (value, low, high) by place."""
    places = list(by_place)
    values, lows, highs = zip(*by_place.values(), strict=True)
    axis.plot(places, values, style, color=colour, marker="o", markersize=3.5, linewidth=1.6, label=label)
    axis.fill_between(places, lows, highs, color=colour, alpha=0.13, linewidth=0)


def plot_resumes(curves: Sequence[Mapping[str, Any]], nearness: str, path: Path) -> None:
    figure, axes = panels(len(METRICS))
    shades = matplotlib.colormaps["viridis"]
    for axis, metric in zip(axes, METRICS, strict=True):
        for number, curve in enumerate(curves):
            low, high = curve["similarity"]
            shade = shades(0.9 * number / max(1, len(curves) - 1))
            draw_line(axis, curve[metric], shade, f"{low:.2f} to {high:.2f}")
        axis.axhline(0.0, color="black", linewidth=0.7, linestyle="--")
        axis.set(xlabel="steps skipped of 50 (0: from scratch)", title=f"{metric}, minus heavy's from scratch")
    axes[0].legend(title=f"similarity, {nearness}", fontsize=7, title_fontsize=7)
    save(figure, path)


def plot_residuals(curves: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    figure, axes = panels(1)
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        steps = range(2, len(curve["mean"]) + 2)
        axes[0].plot(steps, curve["mean"], color=colour, linewidth=1.6, label=f"{name}, mean")
        axes[0].plot(steps, curve["lowest tenth"], ":", color=colour, linewidth=1.2, label=f"{name}, lowest tenth")
    axes[0].axhline(0.99, color="black", linewidth=0.7, linestyle="--", label="0.99")
    axes[0].set(xlabel="step", ylabel="cosine with the step before", title="ControlNet residuals of adjacent steps")
    axes[0].legend(fontsize=7)
    save(figure, path)


def plot_loras(curves: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    figure, (cosines, strengths) = panels(2)
    for (style, curve), colour in zip(curves.items(), COLOURS, strict=False):
        steps = range(1, len(curve["cosine"]) + 1)
        cosines.plot(steps, curve["cosine"], color=colour, linewidth=1.6, label=style)
        draw_line(strengths, curve["strength"], colour, style)
    cosines.axhline(0.99, color="black", linewidth=0.7, linestyle="--", label="0.99")
    cosines.set(xlabel="step", title="Cosine of latents with and without the LoRA")
    strengths.set(xlabel="switched on after step (50: never)", title="Strength of the style", ylim=(-0.03, 1.03))
    cosines.legend(fontsize=7)
    save(figure, path)


def plot_steps(curves: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], path: Path) -> None:
    metrics = list(next(iter(curves.values())))
    figure, axes = panels(len(metrics))
    for axis, metric in zip(axes, metrics, strict=True):
        for (model, by_metric), colour in zip(curves.items(), COLOURS, strict=False):
            draw_line(axis, by_metric[metric], colour, model)
        axis.set(xlabel="steps", title=metric)
    axes[0].legend(fontsize=7)
    save(figure, path)


def plot_as_good(curves: Mapping[str, Any], path: Path) -> None:
    figure, (bars, ranks) = panels(2)
    by_count: Mapping[str, Sequence[float]] = curves["by number of things"]
    for place, (value, low, high) in enumerate(by_count.values()):
        bars.bar(place, value, color=COLOURS[0], width=0.6)
        bars.errorbar(place, value, [[value - low], [high - value]], color="black", capsize=3, linewidth=1)
    bars.set_xticks(range(len(by_count)), list(by_count))
    bars.set(title="Prompts on which light is as good or better", ylim=(0.0, 1.0))
    difference: Iterable[float] = curves["light minus heavy"]
    values = list(difference)
    ranks.plot([(number + 0.5) / len(values) for number in range(len(values))], values, color=COLOURS[0], linewidth=1.6)
    ranks.axhline(0.0, color="black", linewidth=0.7, linestyle="--")
    ranks.set(xlabel="share of the prompts", title="Share of attributes, light minus heavy")
    save(figure, path)
