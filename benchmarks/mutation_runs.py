"""Mutants in copies of the tree, as many at a time as there are copies, each against the tests that run its line."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from benchmarks.mutation_operators import Mutant
from benchmarks.mutation_plugin import LOADED, PLUGINS
from lab.runs.machine import ROOT, git

NICENESS = 10
# A mutant that hangs is stopped after its tests' time so many times over, and some more for a busy machine.
TIME_FACTOR, TIME_SLACK_S = 5.0, 20.0
LEFT_OUT_COUNT = 3


@dataclass(frozen=True)
class MutatedModule:
    """A module under mutation: its files, and the tests that answer for it; `chosen` of them, as pytest's -k has it.
    `processes` are files of tests that run it in processes of their own, where nobody sees which lines."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    chosen: str = ""
    processes: tuple[str, ...] = ()

    def paths(self) -> list[str]:
        found = {str(path.relative_to(ROOT)) for pattern in self.sources for path in ROOT.glob(pattern)}
        return sorted(found)


@dataclass(frozen=True)
class Measured:
    """Hold the tests' seconds without a mutant, and the tests of each line by file and line. `unseen`: tests that may
    run any line. `libraries`: packages that take long to import and that the tests have imported."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]
    failed: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)

    def sound_tests(self) -> list[str]:
        """Those that pass without a mutant."""
        return [name for name in self.seconds if name not in self.failed]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those that run its statement, the quickest first, and those of files whose constants did; of what runs as
        the file itself is loaded, all: who makes an object of a class runs no line of it."""
        lines = self.lines.get(mutant.path, {})
        runners = {name for line in mutant.lines for name in lines.get(line, ())}
        loaded = {name for name in runners if not name or name.startswith(LOADED)}
        files = tuple(f"{name.removeprefix(LOADED)}::" for name in loaded if name)
        if loaded and runners == loaded:
            runners = set(self.seconds)
        elif files:
            runners |= {name for name in self.seconds if name.startswith(files)}
        runners = runners - {*loaded, *self.failed} or set(self.unseen)
        return sorted(runners, key=lambda name: self.seconds.get(name, 0.0))


@dataclass(frozen=True)
class MutantOutcome:
    """`verdict`: killed, stopped (it hung, which is as good), survived, or unreached (no test runs its line).
    `test` is the test that killed it, "" where the module could not be imported or a test hung."""

    mutant: Mutant
    verdict: str
    test: str = ""

    @property
    def is_killed(self) -> bool:
        return self.verdict in ("killed", "stopped")

    @property
    def level(self) -> str:
        """The folder of `tests/` that the killing test stands in; the verdict where no test is known."""
        return self.test.split("/")[1] if self.test.startswith("tests/") else self.verdict


@contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """So many copies of the tree as it is, without what git ignores."""
    files = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    with tempfile.TemporaryDirectory(prefix="pentimento-mutants-") as made:
        trees = [Path(made) / str(number) for number in range(count)]
        for tree in trees:
            for file in files:
                if (ROOT / file).is_file():
                    (tree / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / file, tree / file)
        yield trees


def measure(suite: MutatedModule, tree: Path) -> Measured:
    """One run of its tests, line by line."""
    record = tree / "measured.json"
    chosen = ("-k", suite.chosen) if suite.chosen else ()
    plugins = [word for name in ("no:cacheprovider", *PLUGINS) for word in ("-p", name)]
    command = (sys.executable, "-m", "pytest", "-q", *plugins)
    sources = ":".join(suite.paths())
    environment = _environment(tree) | {"PENTIMENTO_TEST_LINES": str(record), "PENTIMENTO_TEST_SOURCES": sources}
    run = subprocess.run([*command, *chosen, *suite.tests], cwd=tree, env=environment, capture_output=True, text=True)
    if not record.exists():
        raise RuntimeError(f"the tests of {suite.name} do not run: {run.stdout[-2000:]}")
    found = json.loads(record.read_text())
    lines = {file: {int(line): names for line, names in by_line.items()} for file, by_line in found["lines"].items()}
    unseen = [name for name in found["seconds"] if name.startswith(suite.processes)] if suite.processes else []
    return Measured(found["seconds"], lines, found["failed"], unseen, found["libraries"])


def check_unchanged(suite: MutatedModule, measured: Measured, tree: Path) -> None:
    """Leaves out tests that fail in a copy as it is, in the way mutants are run: what fails then, no mutant does.
    RuntimeError where many do."""
    runner = Runner(tree, measured.libraries)
    limit_s = max(600.0, TIME_SLACK_S + TIME_FACTOR * sum(measured.seconds.values()))
    try:
        for _ in range(LEFT_OUT_COUNT + 1):
            verdict, _, failed = runner.unchanged(suite.paths()[0], measured.sound_tests(), limit_s).partition(" ")
            if verdict == "passed":
                return
            if not failed:
                break
            measured.failed.append(failed)
        raise RuntimeError(f"the tests of {suite.name} fail without any mutant: {verdict} {measured.failed}")
    finally:
        runner.close()


class Runner:
    """A process in a copy that runs one mutant at a time, with `libraries` imported once for all of them."""

    def __init__(self, tree: Path, libraries: Sequence[str] = ()) -> None:
        command = (sys.executable, "-m", "benchmarks.mutation_zygote", *libraries)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: subprocess.Popen[str] = subprocess.Popen(command, cwd=tree, env=_environment(tree), **streams)  # type: ignore[call-overload]

    def run(self, mutant: Mutant, measured: Measured) -> MutantOutcome:
        tests = measured.tests_of(mutant)
        if not tests:
            return MutantOutcome(mutant, "unreached")
        limit = TIME_SLACK_S + TIME_FACTOR * sum(measured.seconds[name] for name in tests)
        word = self._ask([mutant.path, mutant.source, tests, limit])
        verdict, _, test = word.partition(" ")
        return MutantOutcome(mutant, {"passed": "survived", "failed": "killed", "stopped": "stopped"}[verdict], test)

    def unchanged(self, path: str, tests: Sequence[str], limit_s: float) -> str:
        """Return the outcome of the tests on the unchanged file: "passed", or "failed" and the test."""
        return self._ask([path, (ROOT / path).read_text(), tests, limit_s])

    def _ask(self, order: list[object]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        word = self._process.stdout.readline().strip()
        if not word:
            raise RuntimeError("the process that runs mutants has ended")
        return word

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_all(mutants: Iterable[Mutant], measured: Measured, trees: Sequence[Path]) -> Iterator[MutantOutcome]:
    """Outcomes in the mutants' order, as they come."""
    with ExitStack() as stack:
        idle: SimpleQueue[Runner] = SimpleQueue()
        for tree in trees:
            runner = Runner(tree, measured.libraries)
            stack.callback(runner.close)
            idle.put(runner)

        def one(mutant: Mutant) -> MutantOutcome:
            runner = idle.get()
            try:
                return runner.run(mutant, measured)
            finally:
                idle.put(runner)

        pool = stack.enter_context(ThreadPoolExecutor(len(trees)))
        yield from pool.map(one, mutants)


def _environment(tree: Path) -> dict[str, str]:
    """Everything of ours comes from the copy, also in what the tests start."""
    return os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
