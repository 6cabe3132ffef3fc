"""What it saves that a worker keeps freed memory: passes of Stable Diffusion 1.5's UNet.

    python -m benchmarks.kept_memory

A process with the heap as workers set it (`pentimento/rpc/freed_memory.py`), and one with glibc's own settings, in
turns: a UNet of Stable Diffusion 1.5's size with random weights, guided pictures of 256 pixels, float32,
one thread, which is not the process's first, as the engine's is not. Of each: processor time of a pass, pages that the
kernel gave anew in it, and the most memory that the process held.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from statistics import median

from benchmarks.report import Figure, Options, at_most, informative, measured, parse_options, publish
from pentimento.rpc.freed_memory import keep_freed_memory

PASSES = 3


@dataclass(frozen=True)
class PassCost:
    """Of a pass: seconds of the processor, and pages given anew; and the most bytes that the process held."""

    seconds: float
    pages: float
    peak_bytes: int


def passes() -> PassCost:
    """Compute some, after two that fill the heap; on this thread."""
    import torch

    from lab.fixtures.full_size import full_size_unet

    torch.set_num_threads(1)
    network = full_size_unet()
    side = network.config.sample_size
    latents, states = torch.randn(2, 4, side, side), torch.randn(2, 77, network.config.cross_attention_dim)
    with torch.inference_mode():
        for _ in range(2):
            network(latents, 500, states)
        pages, began = getrusage(RUSAGE_SELF).ru_minflt, time.thread_time()
        for _ in range(PASSES):
            network(latents, 500, states)
        seconds = (time.thread_time() - began) / PASSES
    used = getrusage(RUSAGE_SELF)
    return PassCost(seconds, (used.ru_minflt - pages) / PASSES, used.ru_maxrss * 1024)


def in_a_process(how: str) -> PassCost:
    command = [sys.executable, "-m", "benchmarks.kept_memory", "--play", how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return PassCost(**json.loads(done.stdout))


def play(how: str) -> None:
    """As the process of a side: print what its passes cost."""
    if how == "kept" and not keep_freed_memory():
        raise SystemExit("this C library keeps no freed memory")
    engine = threading.Thread(target=lambda: print(json.dumps(vars(passes()))))
    engine.start()
    engine.join()


def figures_of(rounds: Sequence[tuple[PassCost, PassCost]]) -> list[Figure]:
    ratios = [kept.seconds / ever.seconds for kept, ever in rounds]
    found = [measured("processor time of a pass, kept / as ever", ratios, median, at_most(1.0))]
    for side, costs in zip(("kept", "as ever"), zip(*rounds, strict=True), strict=True):
        found += [
            measured(f"{side}: a pass", [cost.seconds for cost in costs], median, informative("s")),
            measured(f"{side}: pages of a pass", [cost.pages for cost in costs], median, informative()),
            measured(f"{side}: most memory", [cost.peak_bytes / 1e9 for cost in costs], median, informative("GB")),
        ]
    return found


def run(options: Options) -> int:
    rounds = []
    for turn in range(1 if options.quick else options.rest["rounds"]):
        sides = ["kept", "as ever"][:: 1 if turn % 2 else -1]
        costs = {how: in_a_process(how) for how in sides}
        rounds.append((costs["kept"], costs["as ever"]))
    return publish(options, figures_of(rounds), notes={"passes": PASSES, "threads": 1})


def add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="processes of each side")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2])
    else:
        raise SystemExit(run(parse_options("kept_memory", __doc__, add_rounds)))
