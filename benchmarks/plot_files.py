"""Write plots as small PNG files."""

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

SIZE = (8.4, 3.4)  # inches at DPI
DPI = 100
PALETTE = 64  # number of colours; few make the files small
COLOURS = ("#3b6fb6", "#d1495b", "#3f8f5b", "#8d6ab8")


def panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    for axis in figure.axes:
        axis.title.set_fontsize(10)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(drawn).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
