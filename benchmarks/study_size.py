"""What a study of 100,000 prompts takes: memory and processor time of `lab.studies` on made-up vectors.

    python -m benchmarks.study_size

384 dimensions, 3,000 themes, 500 users, a prompt every 8 s (nine days and a bit); one thread. Memory is what the study
takes beside the vectors it is given; the cosines of all pairs would be 40 GB.
"""

import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.report import Figure, at_most, informative, parse_options, publish
from lab.studies import PromptLog, StudySettings, make_study
from lab.studies.neighbours import Vectors

COUNT, QUICK_COUNT = 100_000, 2_000
WIDTH = 384
THEMES = 3_000
SPREAD = 0.5
USERS = 500
GAP_S = 8.0
KIB, MIB = 1024, 2**20


def main() -> int:
    options = parse_options("study_size", __doc__)
    count = QUICK_COUNT if options.quick else COUNT
    random = np.random.default_rng(0)
    vectors = made_up(count, random)
    users = tuple(str(user) for user in random.integers(0, USERS, count))
    log = PromptLog(
        "made up", tuple(f"prompt {row}" for row in range(count)), GAP_S * np.arange(count, dtype=np.float64), users
    )
    before_bytes, began_s = psutil.Process().memory_info().rss, time.process_time()
    make_study(log, vectors, StudySettings())
    cpu_s, memory = time.process_time() - began_s, (high_water_bytes() - before_bytes) / MIB
    name = f"a study of {count} prompts"
    figures = [
        Figure(f"{name}: memory beside its vectors", memory, at_most(512.0, "MiB"), [memory], None),
        Figure(f"{name}: processor time", cpu_s, informative("s"), [cpu_s], None),
    ]
    return publish(options, figures, notes={"prompts": count, "width": WIDTH, "themes": THEMES, "users": USERS})


def made_up(count: int, random: np.random.Generator) -> Vectors:
    """Unit vectors around themes (count, WIDTH)."""
    themes = random.normal(size=(THEMES, WIDTH)).astype(np.float32)
    vectors = np.empty((count, WIDTH), np.float32)
    for row in range(count):
        vectors[row] = themes[random.integers(THEMES)] + SPREAD * random.normal(size=WIDTH)
        vectors[row] /= np.linalg.norm(vectors[row])
    return vectors


def high_water_bytes() -> int:
    """Return the most that this process ever had resident; getrusage would tell its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return KIB * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    raise SystemExit(main())
