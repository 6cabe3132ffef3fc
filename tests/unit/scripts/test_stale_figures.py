"""Find the code behind a published figure."""

import ast
from pathlib import Path

import pytest

from scripts import stale_figures

ROOT = Path(__file__).resolve().parents[3]


def test_names_are_of_imports_and_started_processes() -> None:
    source = 'import a.b\nfrom c import d, e\nrun("services.edge", "other.thing")\n'

    assert sorted(stale_figures.names_in(ast.parse(source))) == ["a.b", "c.d", "c.e", "services.edge.__main__"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "inside", "outside"),
    [
        # It calls the gateway's parts in its own process.
        ("isolation", "services/vectordb_gateway/lookup/lookup.py", "services"),
        # It starts whole suites.
        ("kill_one", "services", "lab/studies/prompt_reuse.py"),
        # It starts single services by their names.
        ("http_overhead", "services/edge/__main__.py", "services"),
    ],
)
def test_code_of_figure_covers_imports_of_benchmark(benchmark: str, inside: str, outside: str) -> None:
    paths = stale_figures.code_of(ROOT / "benchmarks" / f"{benchmark}.py")

    assert inside in paths
    assert outside not in paths
