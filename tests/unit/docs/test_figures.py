"""What is said of benchmarks: `make bench` runs all or says why not, and pages have the newest results."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PUBLISHES = re.compile(r"return publish(?:_parts)?\(options")
PUBLISHING = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if PUBLISHES.search(path.read_text())}
RESULTS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")}
NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# The end of a row's first cell: how many there were.
COUNT = re.compile(r"(?:\bof ([\d,]+)|([\d,]+) pictures)$")


def run_by_make() -> set[str]:
    listed = re.search(r"^BENCHMARKS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    return set(listed[1].replace("\\", "").split())


def said_to_be_left_out() -> set[str]:
    """The names of the page's table, and of the results of runs with an option that stand behind it."""
    section = (ROOT / "docs" / "benchmarks.md").read_text().partition("`make bench` runs all")[2].partition("\n- **")[0]
    table, _, behind = section.partition("`filled_cache` has no figure")
    return set(re.findall(r"`(\w+)`", table + behind.partition(".")[2]))


def readme_rows() -> list[tuple[str, str, str]]:
    """Benchmark, what was measured, and its figures."""
    table = (ROOT / "README.md").read_text().partition("## Figures")[2].partition("## ")[0]
    return re.findall(r"^\| `(\w+)`(.*?) \| (.*?) \|", table, re.MULTILINE)


def value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def half_a_digit(text: str) -> float:
    """What rounding to the digits of `text` may have changed."""
    digits, _, exponent = text.partition("e")
    return 0.5000001 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def measured(benchmark: str) -> list[float]:
    """Figures and bounds in the results of a benchmark, those with an option too."""
    rows = [row for result in RESULTS.values() if result["benchmark"] == benchmark for row in result["figures"]]
    intervals = [row["confidence_interval"] or {"low": row["figure"], "high": row["figure"]} for row in rows]
    bounds = [interval[end] for interval in intervals for end in ("low", "high")]
    return [number for number in (*(row["figure"] for row in rows), *bounds) if number is not None]


def section_of(benchmark: str) -> str:
    """What the page says of a benchmark; two may share a section."""
    sections = re.split(r"^### ", (ROOT / "docs" / "benchmarks.md").read_text(), flags=re.MULTILINE)[1:]
    return next(text for text in sections if benchmark in text.partition("\n")[0].split(", "))


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_the_page_names_the_commit_of_each_result(name: str) -> None:
    result = RESULTS[name]

    assert result["commit"][:7] in section_of(result["benchmark"])


@pytest.mark.parametrize("name", sorted(PUBLISHING | RESULTS.keys()))
def test_make_bench_runs_every_benchmark_or_the_page_says_why_not(name: str) -> None:
    assert (name in run_by_make()) != (name in said_to_be_left_out())


@pytest.mark.parametrize("benchmark, what, figures", readme_rows(), ids=lambda text: text[:20])
def test_the_readme_has_the_figures_of_the_results(benchmark: str, what: str, figures: str) -> None:
    found = measured(benchmark)

    told = NUMBER.findall(figures)

    assert told
    assert [text for text in told if all(abs(value(text) - one) > half_a_digit(text) for one in found)] == []
    if count := COUNT.search(what):
        assert value(count[1] or count[2]) in (row["n"] for row in RESULTS[benchmark]["figures"])
