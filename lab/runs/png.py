"""Draw reports as PNG. Only this module imports matplotlib, on first use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.runs.panels import Bar, Panel, bars, panels
from lab.runs.report import Report, told_apart
from lab.runs.svg import COLOURS
from pentimento.domain.errors import FailedPrecondition

DPI = 110
# Beyond as many runs as there are colours they come again, in other lines.
_DASHES = ("-", "--", ":", "-.")


def check_png() -> None:
    """FailedPrecondition where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise FailedPrecondition("NO_MATPLOTLIB", "a PNG needs matplotlib: pip install matplotlib") from None


def save_png(reports: Sequence[Report], path: Path, title: str = "") -> None:
    """Raises as `check_png`."""
    check_png()
    _save(lambda: _draw_reports(told_apart(reports), title), path)


def _draw_reports(reports: Sequence[Report], title: str) -> Any:
    from matplotlib.figure import Figure

    drawn, waterfalls = panels(reports), bars(reports)
    rows = (len(drawn) + 1) // 2 + bool(waterfalls)
    figure = Figure(figsize=(10, 3.2 * max(1, rows)), layout="constrained")
    grid = figure.add_gridspec(max(1, rows), 2)
    for index, panel in enumerate(drawn):
        _draw(figure.add_subplot(grid[index // 2, index % 2]), panel)
    if waterfalls:
        _draw_bars(figure.add_subplot(grid[rows - 1, :]), waterfalls)
    if drawn:
        # One legend for all panels, next to the lines.
        names = [series.name for series in drawn[0].series]
        figure.legend(figure.axes[0].get_lines(), names, loc="outside lower center", ncols=4, fontsize="small")
    if title:
        figure.suptitle(title)
    return figure


def save_panels(panels: Sequence[Panel], path: Path, title: str = "") -> None:
    """Write panels, each with its own legend. Raises as `check_png`."""
    check_png()
    _save(lambda: _draw_panels(panels, title), path)


def _draw_panels(panels: Sequence[Panel], title: str) -> Any:
    from matplotlib.figure import Figure

    rows = max(1, (len(panels) + 1) // 2)
    figure = Figure(figsize=(11, 3.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(grid[index // 2, index % 2])
        _draw(axes, panel)
        axes.legend(axes.get_lines(), [series.name for series in panel.series], fontsize="x-small")
    if title:
        figure.suptitle(title)
    return figure


def _save(draw: Callable[[], Any], path: Path) -> None:
    """Save the figure. Names are user input: a $ begins no formula. (Legends get labels explicitly, since matplotlib
    omits labels that begin with _.)"""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):
        draw().savefig(path, dpi=DPI, format="png")


def _draw(axes: Any, panel: Panel) -> None:
    for index, series in enumerate(panel.series):
        colour, dash = COLOURS[index % len(COLOURS)], _DASHES[index // len(COLOURS) % len(_DASHES)]
        axes.plot(series.x, series.y, color=colour, linestyle=dash, linewidth=1.6)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _draw_bars(axes: Any, waterfalls: Sequence[Bar]) -> None:
    names = list(dict.fromkeys(name for bar in waterfalls for name, _ in bar.parts))
    for index, name in enumerate(names):
        widths = [dict(bar.parts).get(name, 0.0) for bar in waterfalls]
        before = [_before(bar, name) for bar in waterfalls]
        colour = COLOURS[index % len(COLOURS)]
        axes.barh([bar.name for bar in waterfalls], widths, left=before, color=colour)
    axes.set(title="Where the time goes", xlabel="seconds of a mean answered request")
    axes.invert_yaxis()
    axes.legend(axes.containers, names, fontsize="small", ncols=4)


def _before(bar: Bar, name: str) -> float:
    total = 0.0
    for part, seconds in bar.parts:
        if part == name:
            break
        total += seconds
    return total
