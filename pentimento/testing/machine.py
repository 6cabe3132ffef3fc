"""What a figure was measured on: without it a number means nothing. Imports neither torch nor grpc."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "unknown"
DIRTY = "-dirty"


def describe_machine(device: str) -> dict[str, object]:
    """CPU, cores (present, usable), memory, system, versions of Python and torch, device, load when the run ended."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "device": device,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def current_commit() -> str:
    """The commit measured; `-dirty` when the tree (results apart) differs from it; "unknown" outside a checkout.

    As it was when first asked: a file that the run itself writes later is no part of what was measured.
    """
    commit = git("rev-parse", "HEAD")
    if not commit:
        return UNKNOWN
    return commit + (DIRTY if git("status", "--porcelain", "--", ".", ":!benchmarks/results") else "")


def is_clean(commit: str) -> bool:
    """Return whether what `current_commit` made of it is a commit that anybody can check out."""
    return commit != UNKNOWN and not commit.endswith(DIRTY)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
