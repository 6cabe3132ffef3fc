"""What is said of benchmarks: `make bench` runs all or says why not, and pages have the newest results."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PUBLISHES = re.compile(r"return publish(?:_parts)?\(options")
PUBLISHING = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if PUBLISHES.search(path.read_text())}
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
RESULTS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")}
NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# The end of a row's first cell: how many there were.
COUNT = re.compile(r"(?:\bof (\d[\d,]*)|(\d[\d,]*) images)$")


def run_by_make() -> set[str]:
    listed = re.search(r"^BENCHMARKS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    return set(listed[1].replace("\\", "").split())


def said_to_be_left_out() -> set[str]:
    """The names in the page's table of benchmarks and results that `make bench` leaves out."""
    table = PAGE.partition("| left out of `make bench` |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}


def rows(text: str) -> list[tuple[str, str, str]]:
    """Benchmark, what was measured, and its figures, of the tables of a page: the link to a section begins a row."""
    return re.findall(r"^\| \[(\w+)\]\([\w/.]*#\1\)(.*?) \| (.*?) \|", text, re.MULTILINE)


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


@pytest.mark.parametrize("benchmark", sorted({result["benchmark"] for result in RESULTS.values()}))
def test_each_result_has_a_row_and_a_section(benchmark: str) -> None:
    assert benchmark in {name for name, _, _ in rows(PAGE)}
    assert f"\n### {benchmark}\n" in PAGE


@pytest.mark.parametrize("name", sorted(PUBLISHING | RESULTS.keys()))
def test_make_bench_runs_every_benchmark_or_the_page_says_why_not(name: str) -> None:
    assert (name in run_by_make()) != (name in said_to_be_left_out())


@pytest.mark.parametrize("benchmark, what, figures", [*rows(README), *rows(PAGE)], ids=lambda text: text[:20])
def test_figures_of_pages_equal_the_results(benchmark: str, what: str, figures: str) -> None:
    found = measured(benchmark)

    told = NUMBER.findall(figures)

    assert told
    assert [text for text in told if all(abs(value(text) - one) > half_a_digit(text) for one in found)] == []
    if count := COUNT.search(what):
        assert value(count[1] or count[2]) in (row["n"] for row in RESULTS[benchmark]["figures"])


def test_readme_has_ten_figures() -> None:
    assert len(rows(README)) == 10
