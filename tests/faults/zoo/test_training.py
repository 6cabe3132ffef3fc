"""Kill trainings, and fill their disk: they continue to exactly the same weights."""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zoo.drawing.tokenizer import build_tokenizer
from zoo.train.loop import CHECKPOINT, LOG, read_state

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
STEPS = 50
MS_REMOUNT = 32
PART = "style-judge"  # needs no other part, and is the smallest such part
TRIAL = ("--steps", str(STEPS), "--checkpoint-every", "4", "--count", "4", "--batch", "2", "--threads", "1")


# Arguments before the command's own: how many checkpoints it writes first, and by how many bytes the next one is
# incomplete.
KILLED_WHILE_WRITING = """
import os, runpy, signal, sys
import zoo.files
from zoo.train.loop import CHECKPOINT

left, missing_bytes = int(sys.argv.pop(1)), int(sys.argv.pop(1))
flush_tree = zoo.files.flush_tree

def flushed_or_killed(path):
    global left
    if path.name.startswith(CHECKPOINT):
        if left == 0:
            os.truncate(path, path.stat().st_size - missing_bytes)
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
    flush_tree(path)

zoo.files.flush_tree = flushed_or_killed
runpy.run_module("zoo.train", run_name="__main__", alter_sys=True)
"""


def train(work: Path, *program: str) -> tuple[int, str]:
    """Return the exit code and errors of `python -m zoo.train`, or of a wrapper that runs it."""
    command = [sys.executable, *(program or ("-m", "zoo.train")), PART, "--work", str(work), "--device", "cpu", *TRIAL]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work folder of an undisturbed training."""
    work = tmp_path_factory.mktemp("whole")
    build_tokenizer(work / "tokenizer", count=50, merges=10)
    assert train(work) == (0, "")
    return work


def begin_like(whole: Path, work: Path) -> None:
    shutil.copytree(whole / "tokenizer", work / "tokenizer")


def logged_steps(work: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (work / PART / LOG).read_text(encoding="utf-8").splitlines()]


def test_a_training_that_is_killed_again_and_again_ends_with_the_same_weights(whole: Path, tmp_path: Path) -> None:
    begin_like(whole, tmp_path)
    chance = random.Random(3)
    reached = []
    for missing_bytes in (1000, 0):
        killed, _ = train(tmp_path, "-c", KILLED_WHILE_WRITING, str(1 + chance.randrange(3)), str(missing_bytes))
        assert killed == -signal.SIGKILL
        assert list((tmp_path / PART).glob("*.partial"))
        reached.append(int(str(read_state(tmp_path / PART)["step"])))

    assert train(tmp_path) == (0, "")

    assert 0 < reached[0] <= reached[-1] < STEPS
    assert (tmp_path / PART / CHECKPOINT).read_bytes() == (whole / PART / CHECKPOINT).read_bytes()
    assert logged_steps(tmp_path) == logged_steps(whole)
    assert sorted(file.name for file in (tmp_path / PART).iterdir()) == [CHECKPOINT, LOG]


class Disk:
    """Mount a tmpfs, and change its size."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.libc = mount, ctypes.CDLL(None, use_errno=True)

    def sized(self, size_bytes: int, flags: int = 0) -> int:
        return int(self.libc.mount(b"tmpfs", bytes(self.mount), b"tmpfs", flags, f"size={size_bytes}".encode()))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = Disk(mount)
    if made.sized(2**20) != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    yield made
    made.libc.umount(bytes(mount))


def test_full_disk_keeps_last_checkpoint_and_is_reported(whole: Path, disk: Disk) -> None:
    checkpoint_bytes = (whole / PART / CHECKPOINT).stat().st_size
    others = sum(file.stat().st_size for file in whole.glob("*.safetensors"))
    disk.sized(others + 2**20 + checkpoint_bytes * 3 // 2, MS_REMOUNT)  # room for one checkpoint, not for two
    begin_like(whole, disk.mount)

    code, errors = train(disk.mount)
    left = sorted(file.name for file in (disk.mount / PART).iterdir())
    step = read_state(disk.mount / PART)["step"]
    disk.sized(2**20 + others + checkpoint_bytes * 3, MS_REMOUNT)
    again = train(disk.mount)

    assert (code, len(errors.splitlines())) == (1, 1)
    assert errors.startswith(f"pentimento: {disk.mount / PART / CHECKPOINT}: cannot be written: No space left")
    assert "the checkpoint of step 4 is complete; the same command continues from it" in errors
    assert (step, left) == (4, [CHECKPOINT, LOG])
    assert again == (0, "")
    assert (disk.mount / PART / CHECKPOINT).read_bytes() == (whole / PART / CHECKPOINT).read_bytes()
    assert logged_steps(disk.mount) == logged_steps(whole)
