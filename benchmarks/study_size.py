"""What a study of COUNT made-up prompts takes: `python -m benchmarks.study_size COUNT`, for `trace_study`.

Prints `{"peak_bytes", "cpu_s"}`: the peak of resident memory above what the process had with its vectors made, and
processor time of the study.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from pentimento.studies import PromptLog, StudySettings, make_study

WIDTH = 384
CENTRES = 3_000
SPREAD = 0.5
USERS = 500
GAP_S = 8.0
KIB = 1024


def main() -> None:
    count = int(sys.argv[1])
    random = np.random.default_rng(0)
    centres = random.normal(size=(CENTRES, WIDTH)).astype(np.float32)
    vectors = np.empty((count, WIDTH), np.float32)
    for row in range(count):
        vectors[row] = centres[random.integers(CENTRES)] + SPREAD * random.normal(size=WIDTH)
        vectors[row] /= np.linalg.norm(vectors[row])
    users = tuple(str(user) for user in random.integers(0, USERS, count))
    log = PromptLog("made up", tuple(f"prompt {row}" for row in range(count)), GAP_S * np.arange(count), users)
    before_bytes, began_s = psutil.Process().memory_info().rss, time.process_time()
    make_study(log, vectors, StudySettings())
    cpu_s = time.process_time() - began_s
    print(json.dumps({"peak_bytes": high_water_bytes() - before_bytes, "cpu_s": cpu_s}))


def high_water_bytes() -> int:
    """Return the most that this process ever had resident; getrusage would tell its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return KIB * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
