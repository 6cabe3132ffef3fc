"""A plugin of pytest for the runs under mutation: tests that draw draw the same every time, the quickest comes first.

With a file named in PENTIMENTO_TEST_LINES it writes there what every test takes and which lines it runs.
"""

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, Phase, settings

# These and no others: with PYTEST_DISABLE_PLUGIN_AUTOLOAD set.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin", "benchmarks.mutation_plugin")
RECORD = os.environ.get("PENTIMENTO_TEST_LINES", "")
# The prefix of a loaded test file's name: only the load shows which lines its constants run.
LOADED = "loaded "
# Imported once for all mutants where tests need them: each takes more than most tests.
SLOW_LIBRARIES = ("torch", "sklearn", "openai", "highspy")

settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("mutation")


class Recorder:
    """Record a test's seconds, fixtures included, and its outcome."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        if not isinstance(collector, pytest.Module):
            return (yield)
        self._coverage.switch_context(LOADED + collector.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - started
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            os.path.relpath(file): {str(line): names for line, names in data.contexts_by_lineno(file).items()}
            for file in data.measured_files()
        }
        libraries = [name for name in SLOW_LIBRARIES if name in sys.modules]
        found = {"seconds": self.seconds, "failed": sorted(self.failed), "lines": lines, "libraries": libraries}
        Path(RECORD).write_text(json.dumps(found))


def started_coverage() -> Coverage:
    coverage = Coverage(data_file=None, include=os.environ["PENTIMENTO_TEST_SOURCES"].split(":"))
    coverage.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported"])
    coverage.start()
    return coverage


# From the first import of what is measured on: pytest loads the conftests before it configures anything.
COVERAGE = started_coverage() if RECORD else None


def pytest_configure(config: pytest.Config) -> None:
    if COVERAGE is not None:
        config.pluginmanager.register(Recorder(COVERAGE))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The order makes room for who failed."""
    wanted = os.environ.get("PENTIMENTO_TEST_ORDER")
    if wanted and report.failed:
        Path(wanted).write_text(report.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = os.environ.get("PENTIMENTO_TEST_ORDER")
    if wanted:
        order = {name: index for index, name in enumerate(Path(wanted).read_text().splitlines())}
        items.sort(key=lambda item: order.get(item.nodeid, len(order)))
