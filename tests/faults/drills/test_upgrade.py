"""Upgrade a serving suite from the previous version's code to this one, process by process, under load."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from pentimento import AsyncClient, ImageRequest
from pentimento.domain.errors import PentimentoError
from scripts.breaking_contracts import DESCRIPTOR_SET, earlier_revision, git
from tests.faults.frontdoor.processes import serving
from tests.support.processes import ROOT, Process

pytestmark = pytest.mark.faults

PLAN = Path(__file__).with_name("planned_suite.py")
CODE = ("pentimento", "services", "lab")
# Workers before the frontdoor, as operations.md has it; one after it, so that the new frontdoor calls the old worker.
ORDER = ("tiny-heavy-0", "gateway", "frontdoor", "controller", "embedder", "tiny-heavy-1")
REQUEST = ImageRequest("a small blue star in the centre on a black background", num_inference_steps=10)
# Answered in each mixture of versions, by either worker.
ANSWERS = 6


def previous_revision() -> str:
    """Return the last tag, the fork from main, or the last commit with other contracts; "" without git's history."""
    if earlier := earlier_revision(ROOT):
        return earlier
    changed = git(ROOT, "log", "-1", "--format=%H", "--", DESCRIPTOR_SET)
    return git(ROOT, "rev-parse", "--verify", "--quiet", f"{changed}~1") if changed else ""


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Return a folder with the previous version's code, and this version's weights."""
    if not (revision := previous_revision()):
        pytest.skip("git has no earlier version here")
    code = subprocess.run(["git", "archive", revision, *CODE], cwd=ROOT, capture_output=True, check=True).stdout
    folder = tmp_path / "previous"
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=code, check=True)
    (folder / "zoo").symlink_to(ROOT / "zoo")
    return folder


@dataclass
class MixedSuite:
    """Run each process of a suite with the code of one folder."""

    state: Path
    running: dict[str, Process] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def planned(self, code: Path) -> dict[str, tuple[str, str, list[str]]]:
        done = subprocess.run(
            [sys.executable, "-P", str(PLAN), str(self.state)],
            env=with_code(code),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        imported, processes = json.loads(done.stdout)
        assert Path(imported).parents[1] == code
        return {name: (module, address, flags) for name, module, address, flags in processes}

    async def start(self, name: str, code: Path) -> None:
        """Start a process once its predecessor has drained, and return when it serves."""
        if old := self.running.get(name):
            old.terminate()
            assert await asyncio.to_thread(old.wait) == 0
        module, address, flags = self.planned(code)[name]
        self.addresses[name] = address
        self._run(name, code, module, flags)
        await serving(address)

    def _run(self, name: str, code: Path, module: str, flags: list[str]) -> None:
        command = [sys.executable, "-P", "-m", module, *flags]
        with (self.state / "logs" / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, env=with_code(code), cwd=code, stdout=log, stderr=log)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def with_code(code: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(code)}


@pytest.fixture
def suite() -> Iterator[MixedSuite]:
    # The paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="pmt-"))
    started = MixedSuite(folder)
    try:
        yield started
    finally:
        started.end()
        shutil.rmtree(folder, ignore_errors=True)


class Load:
    """Send requests from several callers; each repeats a failed call with its key, as clients should."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._numbers = count()
        self.answered: dict[str, str] = {}
        self.workers: set[str] = set()
        self.callers = {asyncio.create_task(self._call()) for _ in range(3)}

    async def _call(self) -> None:
        while True:
            number = next(self._numbers)
            key = f"key-{number}"
            while key not in self.answered:
                with suppress(PentimentoError):
                    image = await self._client.generate(replace(REQUEST, seed=number), idempotency_key=key)
                    self.answered[key] = image.provenance.request_id
                    self.workers.add(image.provenance.worker_id)

    async def until_answered(self) -> None:
        """Wait until ANSWERS more requests are answered, and both workers have answered."""
        goal, self.workers = len(self.answered) + ANSWERS, set()
        while len(self.answered) < goal or len(self.workers) < 2:
            ended, _ = await asyncio.wait(self.callers, timeout=0.05)
            for caller in ended:
                caller.result()

    async def stop(self) -> None:
        for caller in self.callers:
            caller.cancel()
        await asyncio.wait(self.callers)


async def test_upgrade_process_by_process_under_load_answers_each_request_once(
    previous: Path, suite: MixedSuite
) -> None:
    assert set(suite.planned(previous)) == set(suite.planned(ROOT)) == set(ORDER)
    await asyncio.gather(*(suite.start(name, previous) for name in ORDER))
    async with AsyncClient(suite.addresses["frontdoor"]) as client:
        load = Load(client)
        await load.until_answered()
        for name in ORDER:
            await suite.start(name, ROOT)
            await load.until_answered()
        await load.stop()

    with closing(sqlite3.connect(suite.state / "frontdoor.sqlite")) as journal:
        rows = journal.execute("SELECT idempotency_key, request_id, state FROM journal_requests").fetchall()
    ended = {key: request_id for key, request_id, state in rows if key in load.answered and state == "completed"}
    assert ended == load.answered
    assert len({key for key, _, _ in rows}) == len(rows)
