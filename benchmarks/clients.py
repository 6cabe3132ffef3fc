"""Clients that others wrote, unmodified, against a whole suite: every call of theirs that the tests make.

The tests of strangers (`tests/e2e/strangers`) run as they do in CI; each counts for its client. A client whose
toolchain is not installed, or whose packages cannot be had, has no figure.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Figure, at_most, counted, parse_options, publish
from lab.fixtures.machine import ROOT

TESTS = "tests/e2e/strangers"
# A client, and what the names of its tests have in common.
CLIENTS = {
    "openai, Python": ("test_openai_clients", "[python]"),
    "openai, JavaScript": ("test_openai_clients", "[javascript]"),
    "gRPC, Python": ("test_python_client", ""),
    "gRPC, JavaScript": ("test_javascript_client", ""),
    "gRPC, Go": ("test_go_client", ""),
}


@dataclass(frozen=True)
class ClientCall:
    """A test of a client: `outcome` is passed, failed or skipped."""

    module: str
    name: str
    outcome: str
    said: str = ""


def main() -> int:
    options = parse_options("clients", __doc__)
    calls = list(run_tests())
    figures = [figure_of(client, calls) for client in CLIENTS]
    return publish(options, figures, notes={"tests": [vars(call) for call in calls]})


def run_tests() -> Iterator[ClientCall]:
    """Run all of them, and yield what became of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", TESTS]
        subprocess.run(command, cwd=ROOT, check=False)
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            yield call_of(case)


def call_of(case: ElementTree.Element) -> ClientCall:
    """Read one test of a report."""
    module = case.get("classname", "").rpartition(".")[2]
    for outcome, tags in {"failed": ("failure", "error"), "skipped": ("skipped",)}.items():
        for tag in tags:
            if (found := case.find(tag)) is not None:
                return ClientCall(module, case.get("name", ""), outcome, found.get("message", "")[:200])
    return ClientCall(module, case.get("name", ""), "passed")


def figure_of(client: str, calls: list[ClientCall]) -> Figure:
    """Return how many of a client's tests fail; a figure that is missing where none of them ran."""
    module, marked = CLIENTS[client]
    ran = [one for one in calls if one.module == module and marked in one.name and one.outcome != "skipped"]
    if not ran:
        return Figure(f"{client}: calls that fail", None, at_most(0), [], None)
    failed = [one.name for one in ran if one.outcome == "failed"]
    return counted(f"{client}: calls that fail", len(failed), len(ran), at_most(0), [vars(one) for one in ran])


if __name__ == "__main__":
    raise SystemExit(main())
