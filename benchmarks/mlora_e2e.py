"""Compare latency and throughput of the whole system with LRU and workers in turn: 300 simulated nodes, three live.

    python -m benchmarks.mlora_e2e

The mix has MLoRA's printed shares, ControlNets and drift (`lab.workloads.production`).

Simulated: nodes of 64 GB, sizes and load seconds of `lab.workloads.components`, loads from the remote store. An image
takes 6 s: computation is 15 to 30 % of MLoRA's 24 to 29 s (sections 1 and 3.1). Ours is Eq. 10 with dispatch by
residency, the baseline LRU with nodes in turn. The load is half of what the baseline's nodes carry; in turn they load
the same at any load. The first quarter of the requests does not count.

Live: twelve models and sixty LoRAs on three emulated workers, with a model and eight LoRAs each, eleven times as fast
as MLoRA's: an image takes 0.5 s, in a batch of four 1.4 s, a model 1 to 3 s, a LoRA 0.42 s. Ours is one suite with
`many-models`; its workers read the next model while they generate, and are then empty for 0.2 s. The baseline is three
suites of one worker, requests in turn, the model that waited longest next. The load is half of the images that the
workers generate one at a time without loading. Requests without an image count with their deadline of 90 s. The first
20 s do not count.

Then ours gets 2.07 times as many requests: its throughput is so much higher if their mean is at most the baseline's.
Intervals come from blocks of 200 requests (simulated) or five seconds (live), resampled with replacement.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean, quantiles

import numpy as np

from benchmarks.suites.emulated import PROMPTS, clients_of, emulated_suite, played
from benchmarks.suites.switching import SwitchingFleet, flags_of, write_files
from lab.runs import RequestRecord
from lab.runs.measure import Figure, Options, Target, at_most, informative, measured, parse_options, publish
from lab.studies.component_nodes import ByResidency, Dispatcher, RoundRobin, Served, replay_on_nodes
from lab.studies.component_rules import Lru
from lab.workloads import Content, SloClass, Workload, poisson
from lab.workloads.components import GB, uses_of_choices
from lab.workloads.production import MLORA_DRIFTING, Choice, Popularity, choose
from pentimento.domain.components import ComponentRule
from pentimento.policies.components import Utility

MEAN_TARGET, P99_TARGET, MORE_TARGET = 0.50, 0.872, 2.07
BASELINE = "LRU in turn"
NODES, NODE_GB, RUN_S, LONG_RUN_S, LOAD, BLOCK = 300, 64, 6.0, 24.0, 0.5, 200
WORKERS, DEADLINE_S, SETTLING_S, BLOCK_S = 3, 90.0, 20.0, 5.0
MODEL_COUNT, LORA_COUNT = 12, 60
SMALL_MIX = replace(
    MLORA_DRIFTING, models=Popularity(MODEL_COUNT, 0.288, 5, 0.704), loras=Popularity(LORA_COUNT, 0.15, 14, 0.75)
)
MODELS = [(f"base-{rank:03d}", 1.0 + 2.0 * (rank * 5 % MODEL_COUNT) / (MODEL_COUNT - 1)) for rank in range(MODEL_COUNT)]
LORAS = [f"lora-{rank:03d}" for rank in range(LORA_COUNT)]
FLEET = SwitchingFleet(MODELS, WORKERS, loras=LORAS, lora_load_s=0.42, swap_s=0.2)

Latencies = Sequence[Sequence[float]]
"""Seconds, by block."""


# Simulated nodes.


def served(
    choices: Sequence[Choice],
    gap_s: float,
    node_count: int,
    run_s: float,
    dispatch: Dispatcher,
    rule: Callable[[], ComponentRule],
) -> list[Served]:
    """Return the counted requests at a mean gap between arrivals."""
    times_s = np.cumsum(np.random.default_rng(9).exponential(gap_s, len(choices))).tolist()
    uses = uses_of_choices(choices, times_s)
    found = replay_on_nodes(uses, dispatch, rule, node_count=node_count, budget_bytes=NODE_GB * GB, run_s=run_s)
    return found[len(choices) // 4 :]


def simulated(options: Options) -> list[Figure]:
    """Return the figures of the simulated nodes."""
    nodes, count = (30, 3_000) if options.quick else (NODES, 16_000)
    choices = choose(MLORA_DRIFTING, count, np.random.default_rng(7))
    name = f"{nodes} nodes: "

    def side(run_s: float, gap_s: float, dispatch: Dispatcher, rule: Callable[[], ComponentRule]) -> list[Served]:
        return served(choices, gap_s, nodes, run_s, dispatch, rule)

    always_loading = side(RUN_S, 1e-6, RoundRobin(), Lru)
    loading_s = fmean(one.loading.seconds for one in always_loading)
    gap_s = (RUN_S + loading_s) / nodes / LOAD
    theirs, own = side(RUN_S, gap_s, RoundRobin(), Lru), side(RUN_S, gap_s, ByResidency(), Utility)
    more = side(RUN_S, gap_s / MORE_TARGET, ByResidency(), Utility)
    found = compared(name, _blocks(own), _blocks(theirs), _blocks(more))
    for of, seconds in (("ours", own), (BASELINE, theirs)):
        loaded_s = fmean(one.loading.seconds for one in seconds)
        found.append(Figure(f"{name}loading a request, {of}", loaded_s, informative("s"), len(seconds)))
    # The same with longer images.
    gap_s = (LONG_RUN_S + loading_s) / nodes / LOAD
    theirs, own = side(LONG_RUN_S, gap_s, RoundRobin(), Lru), side(LONG_RUN_S, gap_s, ByResidency(), Utility)
    title = f"{name}images of {LONG_RUN_S:g} s: mean latency ÷ {BASELINE}'s"
    return [*found, _ratio(title, _blocks(own), _blocks(theirs), fmean, informative())]


def _blocks(of: Sequence[Served]) -> Latencies:
    seconds = [one.latency_s for one in of]
    return [seconds[begin : begin + BLOCK] for begin in range(0, len(seconds), BLOCK)]


# Live workers.


def requests_of(load: float, seconds: float) -> Workload:
    """Return the arrivals at a share of the images that all workers generate one at a time without loading."""
    rng = np.random.default_rng(3)
    content = Content(prompts=PROMPTS, slo_classes=(SloClass("standard", DEADLINE_S),), steps=10)
    plain = poisson(load * FLEET.images_per_s, SETTLING_S + seconds, rng, content)
    chosen = choose(SMALL_MIX, len(plain.arrivals), rng)
    arrivals = (replace(one, model=of.model, loras=of.loras) for one, of in zip(plain.arrivals, chosen, strict=True))
    return replace(plain, arrivals=tuple(arrivals))


def played_on(suite_count: int, folder: Path, policy: str, workload: Workload) -> Latencies:
    """Return the latencies of the counted requests, which new suites get in turn."""
    tenants = [f"turn-{number}" for number in range(suite_count)]
    shared = [replace(one, tenant=tenants[at % suite_count]) for at, one in enumerate(workload.arrivals)]

    async def load(suites: Sequence[object]) -> list[RequestRecord]:
        async with AsyncExitStack() as stack:
            clients = {}
            for tenant, suite in zip(tenants, suites, strict=True):
                own = await stack.enter_async_context(clients_of(suite, {"": ""}))  # type: ignore[arg-type]
                clients[tenant] = own[""]
            return await played(replace(workload, arrivals=tuple(shared)), clients)

    with ExitStack() as stack:
        flags, plugins = flags_of(folder, policy), {"PYTHONPATH": str(folder)}
        fleet = folder / "fleet.toml"
        suites = [stack.enter_context(emulated_suite(fleet, flags, plugins)) for _ in tenants]
        records = asyncio.run(load(suites))
    blocks: dict[int, list[float]] = {}
    for one in records:
        if one.arrived_s >= SETTLING_S:
            latency_s = one.latency_s if one.outcome.answered else DEADLINE_S
            blocks.setdefault(int(one.arrived_s / BLOCK_S), []).append(latency_s)
    return [blocks[at] for at in sorted(blocks)]


def live(options: Options) -> list[Figure]:
    """Return the figures of live workers."""
    seconds = 15.0 if options.quick else 60.0
    with tempfile.TemporaryDirectory() as together, tempfile.TemporaryDirectory() as alone:
        write_files(Path(together), FLEET)
        write_files(Path(alone), replace(FLEET, workers=1, swap_s=None))
        stated = requests_of(LOAD, seconds)
        own = played_on(1, Path(together), "many-models", stated)
        theirs = played_on(WORKERS, Path(alone), "lru-models", stated)
        more = played_on(1, Path(together), "many-models", requests_of(LOAD * MORE_TARGET, seconds))
    return compared("three live workers: ", own, theirs, more)


# Both.


def compared(name: str, own: Latencies, theirs: Latencies, more: Latencies) -> list[Figure]:
    """Return the ratios of mean and p99, with `more` requests too, and the seconds themselves."""
    title = f"{name}mean latency at {MORE_TARGET} times the load ÷ {BASELINE}'s"
    found = [
        _ratio(f"{name}mean latency ÷ {BASELINE}'s", own, theirs, fmean, at_most(MEAN_TARGET)),
        _ratio(f"{name}p99 ÷ {BASELINE}'s", own, theirs, _p99, at_most(P99_TARGET)),
        _ratio(title, more, theirs, fmean, at_most(1.0)),
    ]
    for side, of_side in (("ours", own), (BASELINE, theirs)):
        seconds = [one for block in of_side for one in block]
        found.append(Figure(f"{name}mean latency, {side}", fmean(seconds), informative("s"), len(seconds)))
        found.append(Figure(f"{name}p99, {side}", _p99(seconds), informative("s"), len(seconds)))
    return found


def _ratio(
    name: str, own: Latencies, theirs: Latencies, statistic: Callable[[Sequence[float]], float], target: Target
) -> Figure:
    def of(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        ours, others = ([one for block in side for one in block] for side in zip(*pairs, strict=True))
        return statistic(ours) / statistic(others)

    return measured(name, list(zip(own, theirs, strict=False)), of, target)


def _p99(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=100)[-1]


def run(options: Options) -> int:
    figures = []
    for part in (simulated, live):
        of_part = part(options)
        for figure in of_part:
            print(figure.line(), flush=True)
        figures += of_part
    figures.sort(key=lambda figure: figure.target.limit is None)
    notes: Mapping[str, float] = {"nodes": NODES, "run_s": RUN_S, "load": LOAD, "workers": WORKERS}
    return publish(options, figures, notes=notes)


if __name__ == "__main__":
    raise SystemExit(run(parse_options("mlora_e2e", __doc__)))
