"""Which code a published figure is made of."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stale_figures", ROOT / "scripts/stale_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_are_of_imports_and_started_processes(script: ModuleType) -> None:
    source = 'import a.b\nfrom c import d, e\nrun("services.edge", "other.thing")\n'

    assert sorted(script.names_in(ast.parse(source))) == ["a.b", "c.d", "c.e", "services.edge.__main__"]


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
def test_code_of_figure_is_what_benchmark_runs(script: ModuleType, benchmark: str, inside: str, outside: str) -> None:
    paths = script.code_of(ROOT / "benchmarks" / f"{benchmark}.py")

    assert inside in paths
    assert outside not in paths
