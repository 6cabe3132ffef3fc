"""Measure every figure that needs a GPU, by one command.

    python -m benchmarks.gpu_rows
    python -m benchmarks.gpu_rows --device cpu --tiny

Each row runs in a separate process, so that a row that fails, hangs or takes all memory ends only itself. The result
lists rows that cannot run with their reasons (`notes.not_run`), and a row that did not run makes the exit code 1. Rows
share a time limit; those with a compiler run last. `--device cpu --tiny` only shows that the rows run.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from lab.runs.machine import ROOT, installed_version
from lab.runs.measure import Figure, Options, at_least, default_out, parse_options, publish

ROUNDS = 20
QUICK_ROUNDS = 3
# limit of a row, so that one that hangs leaves time for others
ROW_LIMIT_S = 240.0
MARK = "row: "
run_process = subprocess.run


@dataclass
class Collected:
    """Collect the rows' results so far: `row_s` of finished rows, by name."""

    figures: list[Figure] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    row_s: dict[str, float] = field(default_factory=dict)


def _rows() -> dict[str, Callable[..., object]]:
    """Import at the row's start: a missing library fails only the rows that need it."""

    def of(module: str, function: str, **arguments: str) -> Callable[..., object]:
        return partial(_call, module, function, arguments)

    rows = {
        "device": of("gpu_device", "device_row"),
        "kernel_accuracy": of("gpu_kernels", "accuracy_row"),
        "kernel_speed": of("gpu_kernels", "speed_row"),
        "transport": of("gpu_transport", "transport_row"),
    }
    for kind in ("step", "seam", "overlap", "latent_parallel"):
        for network in ("sd15", "sdxl"):
            rows[f"{kind}_{network}"] = of("gpu_steps", f"{kind}_row", network=network)
    for network in ("sd15", "sdxl"):
        rows[f"patch_{network}"] = of("gpu_patch", "patch_row", network=network)
        rows[f"decode_{network}"] = of("gpu_decode", "decode_row", network=network)
        rows[f"served_{network}"] = of("gpu_served", "served_row", network=network)
    for network, count in (("sd15", "1"), ("sdxl", "1"), ("sd15", "4"), ("sdxl", "4")):
        rows[f"picture_{network}_{count}"] = of("gpu_pictures", "image_row", network=network, count=count)
    return rows


def _call(module: str, function: str, arguments: dict[str, str], setup: object) -> object:
    import importlib

    return getattr(importlib.import_module(f"benchmarks.{module}"), function)(setup, **arguments)


ROWS = _rows()


def run_row(name: str, device: str, *, tiny: bool, rounds: int) -> str:
    """Return a row's result as JSON."""
    import torch

    from benchmarks.gpu_setup import GpuSetup, RowResult

    with torch.inference_mode():
        result = ROWS[name](GpuSetup(torch.device(device), tiny, rounds))
    assert isinstance(result, RowResult)
    return json.dumps({"figures": [figure.row() for figure in result.figures], "not_run": result.not_run})


def collect(name: str, options: Options, limit_s: float, collected: Collected) -> None:
    """Run a row in a separate process."""
    if limit_s <= 0:
        collected.not_run[name] = "OUT_OF_TIME: the rows before it took all"
        return
    command = [sys.executable, "-m", "benchmarks.gpu_rows", "--row", name, "--device", options.rest["device"]]
    command += ["--tiny"] if options.rest["tiny"] else []
    command += ["--quick"] if options.quick else []
    began_at = time.monotonic()
    try:
        done = run_process(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        collected.not_run[name] = f"OUT_OF_TIME: it was not done after {limit_s:.0f} s"
        return
    answers = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not answers:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        collected.not_run[name] = f"FAILED: exit code {done.returncode}: {last[:300]}"
        return
    collected.row_s[name] = round(time.monotonic() - began_at, 1)
    answer = json.loads(answers[-1])
    collected.figures += map(Figure.from_row, answer["figures"])
    collected.not_run |= answer["not_run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to show that the rows run")
    parser.add_argument("--tiny", action="store_true", help="networks of a few layers")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS), help="only these, in this order")
    parser.add_argument("--limit-s", type=float, default=560.0, help="time for all rows together")
    parser.add_argument("--row", choices=ROWS, help="only this one, in this process; its JSON on standard output")


def main() -> int:
    options = parse_options("gpu_rows", __doc__, add_options)
    chosen = options.rest
    if chosen["tiny"] and options.out == default_out("gpu_rows", quick=False):
        options = replace(options, out=default_out("gpu_rows", quick=True))
    rounds = QUICK_ROUNDS if options.quick or chosen["tiny"] else ROUNDS
    if chosen["row"]:
        print(MARK + run_row(chosen["row"], chosen["device"], tiny=chosen["tiny"], rounds=rounds), flush=True)
        return 0
    collected, ends_at = Collected(), time.monotonic() + chosen["limit_s"]
    try:
        for name in chosen["rows"]:
            print(f"== {name}", flush=True)
            collect(name, options, min(ends_at - time.monotonic(), ROW_LIMIT_S), collected)
    except KeyboardInterrupt:  # the results so far are written
        ended = {*collected.row_s, *collected.not_run}
        collected.not_run |= {name: "INTERRUPTED" for name in chosen["rows"] if name not in ended}
    for what, reason in collected.not_run.items():
        print(f"not run: {what}: {reason}")
    measured_rows = Figure("rows that ran", len(collected.row_s), at_least(len(chosen["rows"]), "rows"))
    notes = {"not_run": collected.not_run, "row_s": collected.row_s, "rounds": rounds, "tiny": chosen["tiny"]}
    notes |= {name: installed_version(name) for name in ("triton", "diffusers")}
    return publish(options, [*collected.figures, measured_rows], device=chosen["device"], notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
