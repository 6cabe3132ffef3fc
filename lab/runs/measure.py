"""Measure the sides of a comparison in turns, and publish figures with intervals and targets in one form.

    options = parse_options("overhead", __doc__)
    seconds = interleave({"ours": ours, "theirs": theirs}, rounds=3 if options.quick else 40)
    pairs = list(zip(seconds["ours"], seconds["theirs"], strict=True))
    raise SystemExit(publish(options, [
        measured("ours ÷ theirs", pairs, median_ratio, at_most(1.05, "x")),
        counted("lost", lost, kills, at_most(0, "requests")),
    ]))

`publish` writes `benchmarks/results/NAME.json`, prints a line for each figure and `figure … target … ok|short` last,
and returns the exit code: 0 if every figure reaches its target, 1 if one falls short.

The file has `benchmark, figure, unit, target` of the first figure, `ok` of all together, `commit, at, machine, seconds`
of the run, at most five scalar `notes` on the setting, and under `figures` a line for each: `name, figure, unit,
interval, target, ok, n`, and the interval's `method`. `quick` marks a short run. A figure that could not be measured is
null and misses any target; a figure with an interval reaches its target if the whole interval does. Samples and earlier
runs are not kept: a file has at most 12 KB.
"""

import argparse
import json
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lab.runs.intervals import BOOTSTRAP, binomial_interval, bootstrap_interval
from lab.runs.machine import ROOT, current_commit, describe_machine, now

Sample = TypeVar("Sample")
Side = TypeVar("Side")
Notes = Mapping[str, "str | float | bool | Notes | None"]

EXACT = "Clopper-Pearson"
PLOTS, TRACES = ROOT / "build" / "plots", ROOT / "build" / "traces"


@dataclass(frozen=True)
class Options:
    """Hold the command line's options; `rest` has a benchmark's additional ones by name, `began_s` the monotonic time
    of parsing."""

    benchmark: str
    quick: bool
    out: Path
    rest: dict[str, Any] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Target:
    """Bound a figure from one or two sides; `limit` is None for a row that decides nothing.

    Comparison ">" is for differences: zero fails.
    """

    comparison: str
    limit: float | None
    unit: str = ""
    upper: float | None = None

    def met_by(self, value: float | None, interval: "Interval | None" = None) -> bool:
        """Return whether the figure's whole interval meets the bound, or without an interval the figure.

        A limit of zero events applies to the count, since the exact interval of a count of zero never ends at zero.
        """
        if self.limit is None:
            return True
        if value is None:
            return False
        is_count = interval is not None and interval.method == EXACT and self.limit == 0
        low, high = (value, value) if interval is None or is_count else (interval.low, interval.high)
        if self.comparison == ">":
            return low > self.limit
        if self.comparison == "<=":
            return high <= self.limit
        return low >= self.limit and (self.upper is None or high <= self.upper)

    def __str__(self) -> str:
        if self.limit is None:
            return "none"
        upper = "" if self.upper is None else f" and <= {self.upper:g}"
        return f"{self.comparison} {self.limit:g}{upper} {self.unit}".rstrip()

    @classmethod
    def parse(cls, text: str, unit: str) -> "Target":
        """Return the target that `str` wrote."""
        if text == "none":
            return informative(unit)
        comparison, limit, *rest = text.removesuffix(unit).split()
        return cls(comparison, float(limit), unit, float(rest[-1]) if rest else None)


def at_most(limit: float, unit: str = "") -> Target:
    return Target("<=", limit, unit)


def at_least(limit: float, unit: str = "") -> Target:
    return Target(">=", limit, unit)


def between(low: float, high: float, unit: str = "") -> Target:
    return Target(">=", low, unit, high)


def surely_above(limit: float, unit: str = "") -> Target:
    return Target(">", limit, unit)


def informative(unit: str = "") -> Target:
    return Target("", None, unit)


@dataclass(frozen=True)
class Interval:
    """Bound the figure at 95 %; `method` says how it was computed."""

    low: float
    high: float
    method: str = BOOTSTRAP


@dataclass(frozen=True)
class Figure:
    """Hold one measured number of `n` samples, and its target. Its value is None if the measured thing does not
    exist."""

    name: str
    value: float | None
    target: Target
    n: int = 0
    interval: Interval | None = None

    @property
    def ok(self) -> bool:
        return self.target.met_by(self.value, self.interval)

    def row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "figure": short(self.value),
            "unit": self.target.unit,
            "interval": self.interval and [short(self.interval.low), short(self.interval.high)],
            "target": str(self.target),
            "ok": self.ok,
            "n": self.n,
        } | ({} if self.interval is None else {"method": self.interval.method})

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Figure":
        """Return a figure from a result's row."""
        interval = None
        if row["interval"]:
            low, high = row["interval"]
            interval = Interval(low, high, row["method"])
        return cls(row["name"], row["figure"], Target.parse(row["target"], row["unit"]), row["n"], interval)

    def shown(self) -> str:
        return "missing" if self.value is None else f"{self.value:.4g} {self.target.unit}".rstrip()

    def line(self) -> str:
        interval = "" if self.interval is None else f" [{self.interval.low:.4g}, {self.interval.high:.4g}]"
        return f"{self.name}: figure {self.shown()}{interval} target {self.target} {verdict(self.ok)}"


def measured(
    name: str, samples: Sequence[Sample], statistic: Callable[[Sequence[Sample]], float], target: Target
) -> Figure:
    """Return a statistic of samples with its bootstrap interval; a pair's samples are (ours, theirs)."""
    return Figure(name, statistic(samples), target, len(samples), Interval(*bootstrap_interval(samples, statistic)))


def counted(name: str, events: int, trials: int, target: Target) -> Figure:
    """Return a count of events; the interval is the exact one of the events per trial, times the trials."""
    low, high = binomial_interval(events, trials)
    return Figure(name, events, target, trials, Interval(low * trials, high * trials, EXACT))


def share(name: str, events: int, trials: int, target: Target) -> Figure:
    """Return the share of trials with an event, and its exact interval; a missing figure without trials."""
    if trials == 0:
        return Figure(name, None, target)
    return Figure(name, events / trials, target, trials, Interval(*binomial_interval(events, trials), EXACT))


def interleave(
    sides: Mapping[Side, Callable[[int], Sample]], rounds: int, seed: int = 0, first: int = 0
) -> dict[Side, list[Sample]]:
    """Call every side once in each round, in a drawn order, with the round's number from `first` on.

    Returns the results by side in the order of the rounds, so that those at one index are a pair.
    """
    kept: dict[Side, list[Sample]] = {name: [] for name in sides}
    for number, names in enumerate(drawn_orders(sides, rounds, seed), first):
        for name in names:
            kept[name].append(sides[name](number))
    return kept


def drawn_orders(sides: Iterable[Side], rounds: int, seed: int = 0) -> Iterator[list[Side]]:
    """Yield the sides in a new drawn order for each round; the same orders for the same seed."""
    generator = random.Random(seed)
    names = list(sides)
    for _ in range(rounds):
        yield generator.sample(names, len(names))


def seconds_of(act: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def parse_options(
    benchmark: str, description: str | None, add: Callable[[argparse.ArgumentParser], None] = lambda parser: None
) -> Options:
    """Parse `--quick`, `--out`, and the options of `add`.

    From here on SIGTERM ends a benchmark as an interrupt does, so that no server of it outlives it. The commit is read
    here, before any measurement.
    """
    current_commit()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}", description=description)
    parser.add_argument("--quick", action="store_true", help="fewer samples, for a rough figure")
    parser.add_argument(
        "--out", type=_file, help="file of the result (default: in benchmarks/results, with --quick in its quick/)"
    )
    add(parser)
    rest = vars(parser.parse_args())
    quick = rest.pop("quick")
    return Options(benchmark, quick, rest.pop("out") or default_out(benchmark, quick), rest)


def _file(text: str) -> Path:
    """Refuse a bad path before a run of half an hour."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, {text} is a directory")
    return path


def renamed(options: Options, benchmark: str) -> Options:
    """Return the options of a run with another form, with a separate file of the result unless another was given."""
    is_default = options.out == default_out(options.benchmark, options.quick)
    named = replace(options, benchmark=benchmark)
    return replace(named, out=default_out(benchmark, options.quick)) if is_default else named


def default_out(benchmark: str, quick: bool) -> Path:
    """Return the default path; a quick run never replaces a measured result."""
    results = ROOT / "benchmarks" / "results"
    return (results / "quick" if quick else results) / f"{benchmark}.json"


def publish(options: Options, figures: Sequence[Figure], *, device: str = "cpu", notes: Notes | None = None) -> int:
    """Write and print the result, and return the exit code. `notes` say how it was measured: seeds, pinning,
    configuration."""
    ok = all(figure.ok for figure in figures)
    first = {key: value for key, value in figures[0].row().items() if key in ("figure", "unit", "target")}
    result = {"benchmark": options.benchmark, **first, "ok": ok, "commit": current_commit(), "at": now()}
    result |= {"machine": describe_machine(device), "seconds": round(time.monotonic() - options.began_s, 1)}
    result |= {"quick": options.quick, "notes": notes or {}, "figures": [figure.row() for figure in figures]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(as_text(result))
    print_figures(figures, ok)
    return 0 if ok else 1


def short(value: float | None) -> float | None:
    """Round a number to six significant digits; whole numbers stay exact."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def as_text(result: Mapping[str, Any]) -> str:
    """Return a result as JSON, a line for each key and each figure."""
    compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    lines = [f"{json.dumps(key)}:{compact(value)}" for key, value in result.items() if key != "figures"]
    figures = ",\n".join(map(compact, result["figures"]))
    return "{" + ",\n".join([*lines, f'"figures":[\n{figures}\n]']) + "}\n"


def print_figures(figures: Sequence[Figure], ok: bool) -> None:
    if len(figures) > 1:
        for figure in figures:
            print(figure.line())
    with_target = [figure for figure in figures if figure.target.limit is not None]
    values = ", ".join(figure.shown() for figure in with_target)
    targets = ", ".join(str(figure.target) for figure in with_target)
    print(f"figure {values} target {targets} {verdict(ok)}", flush=True)


def verdict(ok: bool) -> str:
    return "ok" if ok else "short"
