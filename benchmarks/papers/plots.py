"""Plot the papers' figures as small PNG files, simulated and published values together."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.chosen import only
from benchmarks.papers.constants import CASCADES, OVERPROVISION, STATIC_LOADS

SIZE = (8.4, 3.4)  # inches at DPI
DPI = 100
PALETTE = 64  # number of colours; few make the files small
COLOURS = ("#3b6fb6", "#d1495b", "#3f8f5b", "#8d6ab8")
Rows = Sequence[Mapping[str, Any]]
COLOUR_OF = dict(
    zip(
        ("diffserve", "proteus", "static-cascade", "clipper-heavy", "clipper-light"),
        (*COLOURS, "#888888"),
        strict=True,
    )
)
_SHORT = {
    "as the paper has it": "paper's\ndata path",
    "as the artefact has it": "artefact's\ndata path",
    "late binding": "late\nbinding",
    "printed": "printed",
}
MIXTURE_COLOURS = {"modm": COLOURS[0], "nirvana-only": COLOURS[1], "vanilla": "#888888"}

# Fig. 6, derived from Clipper-heavy's violations and the published ratios of DiffServe, the static cascade and Proteus
PRINTED_VIOLATIONS = {
    cascade.name: {
        "clipper-heavy": heavy,
        "diffserve": heavy / fewer,
        "static-cascade": static * heavy / fewer,
        "proteus": proteus * heavy / fewer,
        "clipper-light": 0.0,
    }
    for cascade, heavy, fewer, static, proteus in (
        (CASCADES[1], 0.684, 26, 1.4, 1.7),
        (CASCADES[2], 0.73, 52, 1.2, 1.9),
    )
}


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


def plot_static(rows: Rows, path: Path) -> None:
    """Plot Fig. 4: violations against FID at three loads."""
    figure, axes = panels(len(STATIC_LOADS))
    for axis, (level, rate) in zip(axes, STATIC_LOADS.items(), strict=True):
        here = [row for row in rows if row.get("level") == level and row["path"] != "late binding"]
        for name, colour in COLOUR_OF.items():
            points = [(100 * row["violations"], row["fid"]) for row in here if row["policy"] == name]
            if points:
                axis.plot(*zip(*sorted(points), strict=True), "o-", color=colour, label=name, markersize=3.5)
        axis.set(title=f"{level}: {rate:g} requests a second", xlabel="violations %", ylabel="FID")
    axes[0].legend(fontsize=7)
    save(figure, path)


def plot_cascades(rows: Rows, path: Path) -> None:
    """Plot Fig. 5 and 6: violations by data path, with the paper's if published."""
    figure, axes = panels(len(CASCADES))
    paths = list(dict.fromkeys(row["path"] for row in rows if "path" in row))
    for axis, cascade in zip(axes, CASCADES, strict=True):
        here = [row for row in rows if row.get("pair") == cascade.name and row["factor"] == OVERPROVISION]
        places = [*paths, *(["printed"] if cascade.name in PRINTED_VIOLATIONS else [])]
        for offset, (name, colour) in enumerate(COLOUR_OF.items()):
            by_path = {row["path"]: row["violations"] for row in here if row["policy"] == name}
            by_path["printed"] = PRINTED_VIOLATIONS.get(cascade.name, {}).get(name, 0.0)
            heights = [100 * by_path.get(place, 0.0) for place in places]
            axis.bar([place + 0.16 * offset for place in range(len(places))], heights, 0.15, color=colour, label=name)
        axis.set(title=cascade.name, ylabel="violations %", yscale="symlog")
        axis.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"])
        axis.set_xticks([place + 0.3 for place in range(len(places))], [_SHORT[place] for place in places], fontsize=7)
    axes[-1].legend(fontsize=7, loc="upper left")
    save(figure, path)


def plot_trace(rows: Rows, path: Path) -> None:
    """Plot Fig. 5: violations and FID over the trace, with the paper's data path and factor."""
    figure, axes = panels(2)
    here = [row for row in rows if row.get("path") == "as the paper has it" and row["factor"] == OVERPROVISION]
    for row in here:
        times = [(index + 0.5) * row["window_s"] for index in range(len(row["violations_over_time"]))]
        colour = COLOUR_OF[row["policy"]]
        axes[0].plot(times, [100 * share for share in row["violations_over_time"]], color=colour, label=row["policy"])
        axes[1].plot(times[: len(row["fid_over_time"])], row["fid_over_time"], color=colour)
    axes[0].set(title="violations %, SD-Turbo and SD 1.5", xlabel="seconds of the trace")
    axes[1].set(title="FID", xlabel="seconds of the trace")
    axes[0].legend(fontsize=7)
    save(figure, path)


def plot_mixture(rows: Mapping[str, Rows], path: Path) -> None:
    """Plot MoDM's Fig. 10, 12 (16 MI210s) and 17."""
    figure, axes = panels(3)
    for name, colour in MIXTURE_COLOURS.items():
        throughput = [row for row in rows["modm10"] if row.get("policy") == name]
        rates = [row["per_minute"] for row in throughput]
        axes[0].plot(rates, [row["answered_per_minute"] for row in throughput], color=colour, label=name)
        slos = [row for row in rows["modm12_13"] if row.get("policy") == name and row["fleet"] == "16 MI210"]
        axes[1].plot([row["per_minute"] for row in slos], [100 * row["over_2x"] for row in slos], color=colour)
        over_time = only((row for row in rows["modm17"] if row.get("policy") == name), f"course of {name}")
        axes[2].step(range(len(over_time["per_minute"])), over_time["per_minute"], color=colour, where="mid")
    for printed in (10, 12, 26):
        axes[0].axhline(printed, color="black", linewidth=0.6, linestyle=":")
    axes[1].axvline(14, color="black", linewidth=0.6, linestyle=":")
    axes[1].axvline(22, color="black", linewidth=0.6, linestyle=":")
    asked = only((row for row in rows["modm17"] if row.get("policy") == "demand"), "course of demand")["per_minute"]
    axes[2].step(range(len(asked)), asked, color="black", linewidth=0.8, linestyle=":", where="mid", label="demand")
    axes[0].set(title="answered a minute, 16 MI210s", xlabel="requests a minute (dotted: the paper's ceilings)")
    axes[1].set(title="over twice the large model's time, %", xlabel="requests a minute (dotted: the paper's limits)")
    axes[2].set(title="answered a minute under a fluctuating load", xlabel="segments of 20 minutes")
    axes[0].legend(fontsize=7)
    axes[2].legend(fontsize=7)
    save(figure, path)


def plot_all(rows: Mapping[str, Rows], folder: Path) -> None:
    """Plot every figure with rows."""
    drawn: Mapping[str, tuple[tuple[str, ...], Callable[[Path], None]]] = {
        "paper-diffserve-static": (("diffserve4",), lambda path: plot_static(rows["diffserve4"], path)),
        "paper-diffserve-trace": (("diffserve5",), lambda path: plot_trace(rows["diffserve5"], path)),
        "paper-diffserve-cascades": (
            ("diffserve5", "diffserve6"),
            lambda path: plot_cascades([*rows["diffserve5"], *rows["diffserve6"]], path),
        ),
        "paper-modm": (("modm10", "modm12_13", "modm17"), lambda path: plot_mixture(rows, path)),
    }
    for name, (needed, draw) in drawn.items():
        if all(rows.get(part) for part in needed):
            draw(folder / f"{name}.png")
