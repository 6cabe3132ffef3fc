"""Simulate the papers' figures from the papers' constants, with the serving dataplane and policies.

    python -m benchmarks.paper_figures [--only diffserve4 modm10 …]

DiffServe Fig. 4-6 and 8, MoDM Fig. 10-13 and 17, NIRVANA's throughput. The order of the systems counts: each figure is
the share of the paper's orderings that hold. Samples and notes have the numbers of both sides, and the orderings that
do not hold with the reasons. Prompts come from a synthetic log with DiffusionDB's locality.

Two are not reproductions but acceptance tests on replayed inputs: DiffServe Fig. 7 does arithmetic on the artefact's
published tables, and Katz Fig. 14 plays the paper's published latencies, one request at a time, through the simulator.
The results follow from the inputs, so that they only show that the inputs are read and played correctly.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.papers.diffserve import figure_4, figure_5, figure_6, figure_7, figure_8
from benchmarks.papers.katz import katz_14
from benchmarks.papers.mixture import figure_10, figure_11, figure_12_13, figure_17, nirvana_throughput
from benchmarks.papers.plots import Rows, plot_all
from benchmarks.papers.systems import Comparison
from lab.runs.measure import PLOTS, Figure, at_least, parse_options, publish
from lab.runs.parts import PartResult, merge_parts

FIGURES: Mapping[str, Callable[[bool], Comparison]] = {
    "diffserve4": figure_4,
    "diffserve5": figure_5,
    "diffserve6": figure_6,
    "diffserve7": figure_7,
    "diffserve8": figure_8,
    "modm10": figure_10,
    "modm11": figure_11,
    "modm12_13": figure_12_13,
    "modm17": figure_17,
    "nirvana": nirvana_throughput,
    "katz14": katz_14,
}

# checks that the paper's numbers already contain
REPLAYED = ("diffserve7", "katz14")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=FIGURES, help="only these figures; the file keeps the others")
    parser.add_argument("--plots", type=Path, help="folder of the plots (default: build/plots)")


def as_part(name: str, comparison: Comparison) -> PartResult:
    shown = f"{name}: acceptance test on replayed inputs" if name in REPLAYED else name
    target = at_least(1.0, "of checks" if name in REPLAYED else "of orderings")
    return PartResult([Figure(shown, comparison.share, target, len(comparison.orders))])


def main() -> int:
    options = parse_options("paper_figures", __doc__, add_options)
    found: dict[str, PartResult] = {}
    rows: dict[str, Rows] = {}
    for name in options.rest["only"] or FIGURES:
        comparison = FIGURES[name](options.quick)
        print(f"{name}: " + "\n".join(comparison.lines()), flush=True)
        found[name] = as_part(name, comparison)
        rows[name] = comparison.rows
    figures, notes = merge_parts(options.out if options.rest["only"] else None, list(FIGURES), found)
    plot_all(rows, options.rest["plots"] or PLOTS)
    return publish(options, figures, notes={"parts": notes})


if __name__ == "__main__":
    raise SystemExit(main())
