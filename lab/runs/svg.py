"""Panels as SVG, without a plotting library."""

import math
from collections.abc import Iterator, Sequence

from lab.runs.markup import escaped
from lab.runs.panels import Bar, Panel, Series

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 40
# Okabe and Ito's colours, which colour-blind readers tell apart too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
DASHES = ("", "6 3", "2 2", "8 3 2 3")
TICKS = 5


def panel_svg(panel: Panel) -> str:
    xs = [x for series in panel.series for x in series.x if math.isfinite(x)]
    ys = [y for series in panel.series for y in series.y if math.isfinite(y)]
    top_x, top_y = nice_limit(max(xs, default=1.0)), nice_limit(max(ys, default=1.0))
    body = [*_axes(panel, top_x, top_y)]
    for index, series in enumerate(panel.series):
        body += _line(series, index, top_x, top_y)
        body.append(_legend(series.name, index, TOP + 12 + 14 * index))
    return _svg(panel.title, WIDTH, HEIGHT, body)


def sheet_svg(title: str, panels: Sequence[Panel], style: str) -> str:
    """Return panels two in a row as one file that stands alone; `style` is CSS."""
    rows = (len(panels) + 1) // 2
    places = [(WIDTH * (index % 2), 24 + HEIGHT * (index // 2)) for index in range(len(panels))]
    drawn = [
        f'<g transform="translate({x} {y})">{panel_svg(panel)}</g>'
        for (x, y), panel in zip(places, panels, strict=True)
    ]
    paper = f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>'
    return _svg(title, 2 * WIDTH, 24 + HEIGHT * rows, [paper, *drawn]) + "\n"


def bars_svg(bars: Sequence[Bar]) -> str:
    """Return one bar per run, with its stages in the order they begin."""
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.parts))
    limit = nice_limit(max((sum(seconds for _, seconds in bar.parts) for bar in bars), default=1.0))
    body = []
    for row, bar in enumerate(bars):
        y, x = TOP + 34 * row, float(LEFT)
        body.append(f'<text x="{LEFT}" y="{y + 10}">{escaped(bar.name)}</text>')
        for name, seconds in bar.parts:
            width = seconds / limit * (2 * WIDTH - LEFT - RIGHT)
            title = f"<title>{escaped(name)}: {seconds:.3g} s</title>"
            body.append(
                f'<rect x="{x:.1f}" y="{y + 14}" width="{width:.1f}" height="14" fill="{_colour(names.index(name))}">'
                f"{title}</rect>"
            )
            x += width
    foot = TOP + 34 * len(bars) + 14
    for index, name in enumerate(names):
        body.append(_swatch(name, index, LEFT + 120 * (index % 7), foot + 16 * (index // 7)))
    height = foot + 16 * (len(names) // 7 + 1)
    return _svg("Where the time goes: seconds of a mean answered request", 2 * WIDTH, height, body)


def nice_limit(value: float) -> float:
    """Return the next of 1, 2, 2.5, 5 times a power of ten; 1 for values up to 0."""
    if not value > 0 or math.isinf(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9))


def _axes(panel: Panel, top_x: float, top_y: float) -> Iterator[str]:
    for tick in range(TICKS + 1):
        x, y = _place(top_x * tick / TICKS, top_y * tick / TICKS, top_x, top_y)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top_y * tick / TICKS:.3g}</text>'
        label = f"{top_x * tick / TICKS:.4g}"
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{label}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="tick" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escaped(panel.x_label)}</text>'
    up = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {up})"'
    yield f'<text class="tick" x="12" y="{up}" text-anchor="middle" {turned}>{escaped(panel.y_label)}</text>'


def _line(series: Series, index: int, top_x: float, top_y: float) -> Iterator[str]:
    """One polyline for each unbroken stretch."""
    stretch: list[str] = []
    for x, y in [*zip(series.x, series.y, strict=True), (math.nan, math.nan)]:
        if math.isfinite(x) and math.isfinite(y):
            stretch.append("{:.1f},{:.1f}".format(*_place(x, y, top_x, top_y)))
        elif stretch:
            yield f'<polyline points="{" ".join(stretch)}" {_stroke(index)}/>'
            stretch = []


def _place(x: float, y: float, top_x: float, top_y: float) -> tuple[float, float]:
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return LEFT + x / top_x * across, HEIGHT - BOTTOM - y / top_y * up


def _legend(name: str, index: int, y: float) -> str:
    x = WIDTH - RIGHT - 150
    line = f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" {_stroke(index)}/>'
    return f'{line}<text class="tick" x="{x + 28}" y="{y}">{escaped(name[:22])}</text>'


def _swatch(name: str, index: int, x: float, y: float) -> str:
    square = f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{_colour(index)}"/>'
    return f'{square}<text class="tick" x="{x + 14}" y="{y}">{escaped(name)}</text>'


def _stroke(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{_colour(index)}" stroke-width="1.8"{dashed}'


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _svg(title: str, width: int, height: int, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f' role="img" aria-label="{escaped(title)}">'
    text = f'<text class="title" x="{LEFT}" y="16">{escaped(title)}</text>'
    return "\n".join([head + label, *body, text, "</svg>"])
