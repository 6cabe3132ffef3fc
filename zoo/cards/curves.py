"""Draw a training's loss and the log's other values against the step, as a small PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

WIDTH_PX, HEIGHT_PX, DPI = 640, 240, 100
COLOURS = 32  # palette's colours; few make the files small
SMOOTHED_OVER = 4  # lines of the log
LINES = ("#3b6fb6", "#d1495b")
# values drawn with the loss: their names in the log, and their common label
SHOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "autoencoder": (("psnr", "foreground_psnr"), "dB of a batch"),
    "dual-encoder": (("first",), "own picture first of its batch"),
    "image-tower": (("first",), "own caption first"),
    "discriminator": (("right",), "right"),
}
BY_NOISE = (("clean_third", "noisy_third"), "loss by amount of noise")


def draw_curve(part: str, log: Sequence[dict[str, float]], path: Path) -> None:
    """Write the curve of a part from the lines of its log, at least one."""
    names, title = SHOWN.get(part, BY_NOISE)
    names = tuple(name for name in names if name in log[0])
    figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI, layout="constrained")
    axes = [figure.add_subplot(1, 2 if names else 1, number + 1) for number in range(2 if names else 1)]
    steps = [line["step"] for line in log]
    _plot(axes[0], steps, {"loss": [line["loss"] for line in log]})
    axes[0].set_title(f"{part}: loss", fontsize=9)
    if names:
        _plot(axes[1], steps, {name: [line[name] for line in log] for name in names})
        axes[1].set_title(title, fontsize=9)
        if len(names) > 1:
            axes[1].legend([name.replace("_", " ") for name in names], fontsize=7, frameon=False)
    save_small(figure, path)


def _plot(axis: Axes, steps: Sequence[float], series: dict[str, list[float]]) -> None:
    for values, colour in zip(series.values(), LINES, strict=False):
        axis.plot(steps, smoothed(values), color=colour, linewidth=1.4, zorder=2)
    for values, colour in zip(series.values(), LINES, strict=False):
        axis.plot(steps, values, color=colour, linewidth=0.5, alpha=0.35, zorder=1)
    if all(value > 0 for values in series.values() for value in values) and "loss" in series:
        axis.set_yscale("log")
    axis.set_xlabel("step", fontsize=8)
    axis.tick_params(labelsize=7, which="both")
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and its neighbours, SMOOTHED_OVER on either side, or symmetrically fewer near the
    ends."""
    found = []
    for middle in range(len(values)):
        reach = min(SMOOTHED_OVER, middle, len(values) - 1 - middle)
        near = values[middle - reach : middle + reach + 1]
        found.append(sum(near) / len(near))
    return found


def save_small(figure: Figure, path: Path) -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    image = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
