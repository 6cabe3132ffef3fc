"""Measure `pentimento up` to SERVING of all processes on a warm disk, and the control plane's memory.

Time runs from the command's start until its endpoint file appears, which follows SERVING from grpc.health.v1 of every
process. One earlier start warms the disk and is not counted. Memory is read from the kernel after a few images:
resident set, and proportional set (shared pages divided among their processes); the gateway's includes its index
process. Two readings show that torch is not imported: the memory maps of the running process and its children (no
libtorch), and `python -X importtime` of the service's modules.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil

from lab.runs.measure import Figure, at_most, informative, measured, parse_options, publish
from pentimento.sdk import Client, ImageRequest
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.state import marked_processes

MEGABYTE = 1_000_000
LIMITS_MB = {"frontdoor": 150, "controller": 150, "gateway": 250}
MODULES = {
    "frontdoor": "services.frontdoor",
    "controller": "services.controller",
    "gateway": "services.vectordb_gateway",
}
# never in a control-plane process; any one imports the rest
HEAVY = ("torch", "transformers", "diffusers")


def main() -> int:
    options = parse_options("cold_start", __doc__, add_options)
    starts = 2 if options.quick else options.rest["starts"]
    with local_suite():
        pass
    seconds: list[float] = []
    weights: list[dict[str, dict[str, float]]] = []
    for _ in range(starts):
        with local_suite() as suite:
            seconds.append(suite.start_s)
            generate(suite, 3)
            weights.append({name: weigh(suite, name) for name in LIMITS_MB})
    figures = [measured("start to SERVING of all", seconds, statistics.median, at_most(30, "s"))]
    figures += [memory for name, limit in LIMITS_MB.items() for memory in memory_figures(name, limit, weights)]
    figures += [torch_figure(name, weights) for name in LIMITS_MB]
    return publish(options, figures, notes={"warm_up_starts": 1, "pictures_before_weighing": 3})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--starts", type=int, default=5, help="starts that are measured")


def generate(suite: LocalSuite, count: int) -> None:
    """Let every process work once, so that its memory is that of use."""
    with Client(suite.endpoint.frontdoor) as client:
        for number in range(count):
            client.generate(ImageRequest(f"a red circle number {number}", num_inference_steps=5))


def processes_of(suite: LocalSuite, name: str) -> Iterator[psutil.Process]:
    """Yield the service's process and its children."""
    for process in marked_processes(suite.state.path):
        command = process.cmdline()
        if MODULES[name] in command:
            yield process
            yield from process.children(recursive=True)


def weigh(suite: LocalSuite, name: str) -> dict[str, float]:
    """Return resident and proportional megabytes (10^6), and the number of mapped files of torch."""
    found = list(processes_of(suite, name))
    if not found:
        raise RuntimeError(f"no process of {name} was found")
    memory = [process.memory_full_info() for process in found]
    mapped = {mapping.path for process in found for mapping in process.memory_maps()}
    return {
        "rss_mb": sum(info.rss for info in memory) / MEGABYTE,
        "pss_mb": sum(info.pss for info in memory) / MEGABYTE,
        "processes": len(found),
        "torch_files_mapped": sum("libtorch" in path or "/torch/" in path for path in mapped),
    }


def memory_figures(name: str, limit_mb: int, weights: list[dict[str, dict[str, float]]]) -> list[Figure]:
    resident = [weight[name]["rss_mb"] for weight in weights]
    proportional = [weight[name]["pss_mb"] for weight in weights]
    return [
        Figure(f"{name} RSS", max(resident), at_most(limit_mb, "MB"), len(resident)),
        measured(f"{name} PSS", proportional, statistics.median, informative("MB")),
    ]


def torch_figure(name: str, weights: list[dict[str, dict[str, float]]]) -> Figure:
    """Count torch's files in the running process's memory maps, and heavy modules that its start imports."""
    mapped = [weight[name]["torch_files_mapped"] for weight in weights]
    imported = heavy_imports(MODULES[name])
    samples: list[Any] = [{"torch_files_mapped": count} for count in mapped]
    samples.append({"heavy_modules_imported": imported})
    value = max(mapped) + len(imported)
    return Figure(f"{name} without torch", value, at_most(0, "traces of torch"), len(samples))


def heavy_imports(module: str) -> list[str]:
    """Return the interpreter's list of heavy imports for the whole service, composition root included."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}.__main__, {module}.wiring"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    return sorted(name for name in imported if name.partition(".")[0] in HEAVY)


if __name__ == "__main__":
    raise SystemExit(main())
