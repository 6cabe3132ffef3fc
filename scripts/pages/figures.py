"""Check that figures on pages equal the results of the benchmarks. `make bench` runs each benchmark, or the page gives
the reason why not."""

import json
import re
from collections.abc import Iterator

from .blocks import ROOT

PUBLISHES = re.compile(r"return publish(?:_parts)?\(options")
PUBLISHING = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if PUBLISHES.search(path.read_text())}
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
MOST_KB = 12
# Results with more than a hundred figures. These limits may only fall.
LARGER_KB = {
    "zoo_quality": 46,
    "latent_storage": 25,
    "gpu_rows": 44,
    "eviction": 28,
    "end_to_end": 19,
    "cascade_quality": 15,
    "controlnet_residency": 14,
    "zoo_phenomena": 14,
    "cache_value": 14,
    "match_predictor": 14,
}
RESULTS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json")}
NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# The end of a row's first cell: the number of samples.
COUNT = re.compile(r"(?:\bof (\d[\d,]*)|(\d[\d,]*) images)$")


def run_by_make() -> set[str]:
    listed = re.search(r"^BENCHMARKS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    return set(listed[1].replace("\\", "").split())


def said_to_be_left_out() -> set[str]:
    """Return the names in the page's table of benchmarks and results that `make bench` skips."""
    table = PAGE.partition("| left out of `make bench` |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}


def rows(text: str) -> list[tuple[str, str, str]]:
    """Yield benchmark, measured quantity and figures from the tables of a page: a link to a section begins each row."""
    return re.findall(r"^\| \[(\w+)\]\([\w/.]*#\1\)(.*?) \| (.*?) \|", text, re.MULTILINE)


def value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def half_a_digit(text: str) -> float:
    """Return the rounding error of the digits of `text`."""
    digits, _, exponent = text.partition("e")
    return 0.5000001 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def measured(benchmark: str) -> list[float]:
    """Return figures and bounds in the results of a benchmark, including those with an option."""
    rows = [row for result in RESULTS.values() if result["benchmark"] == benchmark for row in result["figures"]]
    found = [number for row in rows for number in (row["figure"], *(row["interval"] or ()))]
    return [number for number in found if number is not None]


def each_result_has_a_row_and_a_section() -> Iterator[str]:
    listed = {name for name, _, _ in rows(PAGE)}
    for benchmark in sorted({result["benchmark"] for result in RESULTS.values()}):
        if benchmark not in listed:
            yield f"docs/benchmarks.md: no row for {benchmark}"
        if f"\n### {benchmark}\n" not in PAGE:
            yield f"docs/benchmarks.md: no section for {benchmark}"


def make_bench_runs_every_benchmark_or_the_page_says_why_not() -> Iterator[str]:
    listed, left_out = run_by_make(), said_to_be_left_out()
    for name in sorted(PUBLISHING | RESULTS.keys()):
        if (name in listed) == (name in left_out):
            both = "and is" if name in listed else "and is not"
            yield f"docs/benchmarks.md: {name} is {'' if name in listed else 'not '}run by make bench {both} left out"


def figures_of_pages_equal_the_results() -> Iterator[str]:
    for page, text in (("README.md", README), ("docs/benchmarks.md", PAGE)):
        for benchmark, what, figures in rows(text):
            found, told = measured(benchmark), NUMBER.findall(figures)
            wrong = [text for text in told if all(abs(value(text) - one) > half_a_digit(text) for one in found)]
            if not told or wrong:
                yield f"{page}: {benchmark}{what}: {', '.join(wrong) or 'no figure'} is in no result"
            count = COUNT.search(what)
            if count and value(count[1] or count[2]) not in (row["n"] for row in RESULTS[benchmark]["figures"]):
                yield f"{page}: {benchmark}{what}: no result has this number of samples"


def results_are_small() -> Iterator[str]:
    for path in sorted((ROOT / "benchmarks" / "results").rglob("*")):
        if path.is_dir() or "quick" in path.parts:
            continue
        limit = LARGER_KB.get(path.stem, MOST_KB) * 1024
        if path.suffix != ".json" or path.stat().st_size > limit:
            yield f"{path.relative_to(ROOT)}: must be a JSON file of at most {limit:,} bytes, without samples"


RULES = (
    results_are_small,
    each_result_has_a_row_and_a_section,
    make_bench_runs_every_benchmark_or_the_page_says_why_not,
    figures_of_pages_equal_the_results,
)
