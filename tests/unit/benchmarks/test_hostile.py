"""Test that an attack's memory is read once the suite has rested."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.hostile import MIB, Played, figures_of, kept_after_rest

HELD_MIB = 200
# holds much memory until it receives a line
PROGRAM = f"""
import sys
held = bytearray(b"x" * ({HELD_MIB} << 20))
print("held", flush=True)
sys.stdin.readline()
del held
print("freed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def before(process: "subprocess.Popen[str]") -> dict[str, tuple[psutil.Process, int]]:
    """Return sizes as if half of the memory had come by an attack."""
    known = psutil.Process(process.pid)
    return {"holder": (known, known.memory_info().rss - HELD_MIB * MIB // 2)}


async def test_kept_memory_at_limit_is_reported(holder: "subprocess.Popen[str]") -> None:
    kept = await kept_after_rest(before(holder), limit_s=0.0)

    assert kept == {"holder": pytest.approx(HELD_MIB / 2, abs=1.0)}


async def test_kept_memory_waits_for_release(holder: "subprocess.Popen[str]") -> None:
    waiting = asyncio.create_task(kept_after_rest(before(holder), limit_s=60.0))
    await asyncio.sleep(0)
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()

    assert (await waiting)["holder"] < 0


async def test_kept_memory_skips_ended_process(holder: "subprocess.Popen[str]") -> None:
    processes = before(holder)
    holder.kill()
    holder.wait()

    assert await kept_after_rest(processes, limit_s=60.0) == {}


@pytest.mark.parametrize("kept_mib, ok", [(64.0, True), (64.1, False)])
def test_kept_memory_figure_uses_largest_process(kept_mib: float, ok: bool) -> None:
    played = [
        Played("flood", {}, 1.0, {"edge": 1.0}, {"edge": 1.0, "frontdoor": kept_mib}, attacked_s={"status": [0.1]}),
        Played("bombs", {}, 1.0, {"edge": 1.0}, {"edge": 2.0}),
    ]

    (figure,) = [one for one in figures_of(played) if one.name == "most kept by a process after a rest"]

    assert (figure.value, figure.ok) == (kept_mib, ok)
