"""Serve the production mix's LoRAs by live workers: real processes that sleep for compute and loads.

Times are an eleventh of MLoRA's: a LoRA takes 0.42 s in the mean, in proportion to its size, an image half a second.
"""

import asyncio
import re
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.suites.emulated import PROMPTS
from benchmarks.suites.paced import PacedSuite, await_live, paced_suite
from lab.runs.load import LoadSettings, play
from lab.workloads import Content, SloClass, Workload, poisson
from lab.workloads.components import loadable
from lab.workloads.production import MLORA_DRIFTING, Popularity, choose
from pentimento.domain.image_request import CacheMode
from pentimento.sdk import AsyncClient

WORKERS, LORA_COUNT, FASTER = 3, 60, 11.0
LOAD, RUN_S, STEPS, DEADLINE_S = 0.5, 0.5, 5, 60.0
MEMORY_MIB = 2_000
# Requests of the mix with LoRAs, by the shares of their numbers.
WITH_LORAS = (0.0, *(share / sum(MLORA_DRIFTING.lora_counts[1:]) for share in MLORA_DRIFTING.lora_counts[1:]))
MIX = replace(MLORA_DRIFTING, loras=Popularity(LORA_COUNT, 0.15, 14, 0.75), lora_counts=WITH_LORAS)
LOADED = re.compile(r"^pentimento_worker_lora_load_seconds_sum\{.*\} (\S+)$", re.MULTILINE)
# Milliseconds of half a step by rows: batches of four take 2.8 times as long.
PASS = f"1 = {RUN_S / STEPS * 500.0}, 4 = {RUN_S / STEPS * 1400.0}"
PACE = f"""name = "paced"
family = "stable_diffusion"
steps = {STEPS}
width_px = 64
height_px = 64
text_width = 8
block_channels = [8]
layers_per_block = 1
encode_ms = {{ {PASS} }}
decode_ms = {{ {PASS} }}
"""


def write_pace(path: Path) -> None:
    """Write the pace with the LoRAs of the mix."""
    entries = [PACE]
    for rank in range(LORA_COUNT):
        one = loadable("lora", f"lora-{rank:03d}")
        entries.append(
            f'[[loras]]\nname = "{one.name}"\nload_s = {one.load_s / FASTER:.3f}\n'
            f"memory_bytes = {one.memory_bytes}\nlatest_start_fraction = 0.2\n"
        )
    path.write_text("\n".join(entries))


def requests_with_loras(count: int) -> Workload:
    """Return requests for LoRAs, at half of the images that the workers generate without loading."""
    rng = np.random.default_rng(11)
    content = Content(prompts=PROMPTS, slo_classes=(SloClass("standard", DEADLINE_S),), steps=STEPS, model="paced")
    rate = LOAD * WORKERS / RUN_S
    plain = poisson(rate, count / rate, rng, content)
    choices = choose(MIX, len(plain.arrivals), rng)
    arrivals = (replace(one, loras=choice.loras) for one, choice in zip(plain.arrivals, choices, strict=True))
    return replace(plain, arrivals=tuple(arrivals))


def played_on_workers(workload: Workload, suite_count: int) -> float:
    """Return the seconds of loading of all workers: of one suite, or of a suite for each with LRU and requests in
    turn."""
    module = "lab.emulation.paced_worker" if suite_count == 1 else "benchmarks.suites.lru_worker"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pace = Path(folder) / "pace.toml"
        write_pace(pace)
        suites = [
            stack.enter_context(
                paced_suite(
                    pace,
                    WORKERS // suite_count,
                    0,
                    max_batch=4,
                    lora_memory_mib=MEMORY_MIB,
                    worker_module=module,
                    measures=True,
                )
            )
            for _ in range(suite_count)
        ]
        asyncio.run(_played(workload, suites))
        return sum(loading_s(address) for suite in suites for address in suite.metrics)


async def _played(workload: Workload, suites: Sequence[PacedSuite]) -> None:
    shared = [replace(one, tenant=str(at % len(suites))) for at, one in enumerate(workload.arrivals)]
    async with AsyncExitStack() as stack:
        clients: Mapping[str, AsyncClient] = {
            str(place): await stack.enter_async_context(AsyncClient(suite.frontdoor))
            for place, suite in enumerate(suites)
        }
        for suite in suites:
            await await_live(suite, len(suite.metrics) + 1)
        records = await play(replace(workload, arrivals=tuple(shared)), clients, LoadSettings(cache=CacheMode.OFF))
    if failed := sum(not one.outcome.answered for one in records):
        raise RuntimeError(f"{failed} requests have no image")


def loading_s(address: str) -> float:
    """Return the seconds that a worker has loaded LoRAs, by its metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        return sum(map(float, LOADED.findall(answer.read().decode())))
