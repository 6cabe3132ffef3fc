"""The run of tests ends by itself when any of its processes dies at any time."""

import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.conftest import pytest_sessionfinish
from tests.file_scheduling import ByFile
from tests.support.processes import runs

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("TEST_PROCESS_KILL_COUNT", "1"))


@dataclass(eq=False)
class ModelProcess:
    """Run tests as a process of pytest-xdist does: each one once the next is known, the last one at shutdown."""

    tests: list[str]
    known: list[str] = field(default_factory=list)
    shutting_down: bool = False
    gateway: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(id="gw"))

    def send_runtest_some(self, indices: list[int]) -> None:
        self.known += [self.tests[at] for at in indices]

    def shutdown(self) -> None:
        self.shutting_down = True

    def has_a_test_to_run(self) -> bool:
        return len(self.known) > 1 or (self.shutting_down and bool(self.known))


def play(rng: random.Random, crash_rate: float) -> tuple[list[str], list[str], list[str]]:
    """Play one run of two processes with random crashes; return all tests, the finished ones, and the crashed ones."""
    tests = [f"f{file}.py::t{at}" for file in range(rng.randint(1, 6)) for at in range(rng.randint(1, 4))]
    options = SimpleNamespace(loadscopereorder=False)
    scheduling = ByFile(SimpleNamespace(getvalue=lambda name: ["popen", "popen"], option=options))
    ran: list[str] = []
    crashed: list[str] = []
    starting: list[ModelProcess] = []
    running: list[ModelProcess] = []

    def start() -> None:
        starting.append(ModelProcess(tests))
        scheduling.add_node(starting[-1])

    start()
    start()
    while starting or running:
        able = [process for process in running if process.has_a_test_to_run()]
        over = [process for process in running if process.shutting_down and not process.known]
        assert starting or able or over, f"nothing happens any more; {len(ran)} of {len(tests)} ran"
        process = rng.choice(starting + able + over)
        if process in over:
            running.remove(process)
            if process in scheduling.nodes:
                assert scheduling.remove_node(process) is None
        elif rng.random() < crash_rate:
            (starting if process in starting else running).remove(process)
            if process in scheduling.nodes and (test := scheduling.remove_node(process)):
                assert test == process.known[0]
                crashed.append(test)
            start()
        elif process in starting:
            starting.remove(process)
            running.append(process)
            scheduling.add_node_collection(process, tests)
            if scheduling.collection_is_completed:
                scheduling.schedule()
        else:
            ran.append(process.known.pop(0))
            scheduling.mark_test_complete(process, tests.index(ran[-1]))
    return tests, ran, crashed


@pytest.mark.parametrize("crash_rate", [0.0, 0.1, 0.3])
def test_scheduling_random_crashes_every_other_test_runs_once(crash_rate: float) -> None:
    for seed in range(300):
        tests, ran, crashed = play(random.Random(seed), crash_rate)
        assert sorted(ran + crashed) == sorted(tests), f"seed {seed}"


def test_suites_of_one_folder_stay_in_one_process() -> None:
    scheduling = ByFile(SimpleNamespace(getvalue=lambda name: ["popen"]))
    assert scheduling._split_scope("tests/e2e/test_a.py::test_one") == "tests/e2e/"
    assert scheduling._split_scope("tests/unit/test_a.py::test_one") == "tests/unit/test_a.py"


KILLED_TREE = """
import os, signal, subprocess
import pytest

KILLED = {killed!r}

@pytest.mark.parametrize("at", range({count}))
def test_in(at, request):
    name = f"{file}-{{at}}"
    if name == KILLED:
        child = subprocess.Popen(["sleep", "600"])
        open({child!r}, "w").write(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    open(os.path.join({ran!r}, name), "w").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_run_ends_after_process_was_killed(tmp_path: Path, seed: int) -> None:
    """`TEST_PROCESS_KILL_COUNT=30` repeats this with the kill in other tests."""
    rng = random.Random(seed)
    (tmp_path / "ran").mkdir()
    counts = [rng.randint(1, 5) for _ in range(6)]
    everything = [f"{file}-{at}" for file, count in enumerate(counts) for at in range(count)]
    killed = rng.choice(everything)
    for file, count in enumerate(counts):
        text = KILLED_TREE.format(
            killed=killed, count=count, file=file, ran=str(tmp_path / "ran"), child=str(tmp_path / "child")
        )
        (tmp_path / f"test_{file}.py").write_text(text)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--max-worker-restart=2", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    flags = ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull]

    ended = subprocess.run(
        [*command, *flags], cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )

    file, at = killed.split("-")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert re.search(rf"crashed while running '.*test_{file}\.py::test_in\[{at}\]'", ended.stdout), ended.stdout
    assert {path.name for path in (tmp_path / "ran").iterdir()} == {*everything} - {killed}
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int((tmp_path / "child").read_text()))
        assert not runs(child), "a child of the killed process goes on"


@pytest.mark.parametrize(("count", "status"), [(3, pytest.ExitCode.TESTS_FAILED), (2, pytest.ExitCode.OK)])
def test_sessionfinish_with_tests_that_never_ran_fails(count: int, status: pytest.ExitCode) -> None:
    scheduling = ByFile(
        SimpleNamespace(getvalue=lambda name: ["popen"], option=SimpleNamespace(loadscopereorder=False))
    )
    process = ModelProcess([f"f{file}.py::t0" for file in range(count)])
    scheduling.add_node(process)
    scheduling.add_node_collection(process, process.tests)
    scheduling.schedule()
    for at in range(2):
        scheduling.mark_test_complete(process, at)
    plugins = SimpleNamespace(getplugin=lambda name: SimpleNamespace(sched=scheduling))
    session = SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins), exitstatus=pytest.ExitCode.OK)

    pytest_sessionfinish(session)  # type: ignore[arg-type]

    assert session.exitstatus is status
