"""Serve 30 models on four live workers: the policy `many-models` against LRU in turn and fixed shares of the models.

    python -m benchmarks.many_models

Emulated workers behind `pentimento up --emulate --policy NAME`: an image takes half a second alone, less in a batch of
up to four; a load takes 0.5 to 2 s, by the model's size. Our workers read the next model while they generate, and are
then empty for 0.2 s; the baselines' load on the empty device. Popularity follows Zipf's law with exponent 1. Every
suite gets the same Poisson arrivals, at 50 and 80 % of the images that the workers generate one at a time without
loading. An image is in time within 8 s. Deadlines are 60 s, so that late images come too; a request without an image
counts with 60 s. The controller plans every 0.8 s, by reports that come twice as often. The first 20 s do not count.

`lru-models` loads a waiting model on the worker with the least recently used one, or on the next worker in turn;
`fixed-shares` gives each worker a fixed share of the models, which it holds in turn. Intervals come from blocks of five
seconds, resampled with replacement.

Then the same in virtual time, with what decides moved: all workers load on the empty device, all read ahead, and loads
take 0.4 of the time.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles

import numpy as np

from benchmarks.suites.emulated import PROMPTS, clients_of, emulated_suite, played
from benchmarks.suites.switching import SwitchingFleet, flags_of, simulated, write_files
from lab.planners.many_models import lru_models
from lab.runs import RequestRecord
from lab.runs.measure import Figure, Options, Target, at_least, at_most, informative, measured, parse_options, publish
from lab.workloads import Content, SloClass, Workload, poisson
from pentimento.policies.plan.registry import many_models
from pentimento.policies.plan.settings import ServingSettings

MODELS, WORKERS = 30, 4
LOADS = (0.5, 0.8)
SLO_S, SOON_S, DEADLINE_S, SETTLING_S, BLOCK_S = 8.0, 4.0, 60.0, 20.0, 5.0
OURS, OTHERS = "many-models", ("lru-models", "fixed-shares")

Blocks = Mapping[int, Sequence[RequestRecord]]


def name_of(rank: int) -> str:
    return f"model-{rank:02d}"


def load_s(rank: int) -> float:
    """Return the load seconds of a model, 0.5 to 2.0; popularity does not depend on them."""
    return 0.5 + 1.5 * (rank * 7 % MODELS) / (MODELS - 1)


def fleet_of(slowness: float = 1.0, swap_s: float | None = None) -> SwitchingFleet:
    return SwitchingFleet([(name_of(rank), slowness * load_s(rank)) for rank in range(MODELS)], WORKERS, swap_s)


FLEET, AHEAD = fleet_of(), fleet_of(swap_s=0.2)
# Our fleet and LRU's, by name.
MOVED = {
    "all load on the empty device": (FLEET, FLEET),
    "all read ahead": (AHEAD, AHEAD),
    "loads of 0.4 of the time": (fleet_of(0.4, swap_s=0.2), fleet_of(0.4)),
}


def requests_of(load: float, seconds: float) -> Workload:
    """Return the arrivals at a share of the capacity without loading."""
    rng = np.random.default_rng(3)
    content = Content(prompts=PROMPTS, slo_classes=(SloClass("standard", DEADLINE_S),), steps=10)
    plain = poisson(load * FLEET.images_per_s, SETTLING_S + seconds, rng, content)
    weights = 1.0 / np.arange(1, MODELS + 1)
    ranks = rng.choice(MODELS, size=len(plain.arrivals), p=weights / weights.sum())
    arrivals = (replace(one, model=name_of(rank)) for one, rank in zip(plain.arrivals, ranks, strict=True))
    return replace(plain, arrivals=tuple(arrivals))


def play(policy: str, fleet: SwitchingFleet, workload: Workload) -> list[RequestRecord]:
    """Return the counted requests of a new suite with that policy."""

    async def load(suite: object) -> list[RequestRecord]:
        async with clients_of(suite, {"": ""}) as clients:  # type: ignore[arg-type]
            return await played(workload, clients)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, fleet)
        with emulated_suite(folder / "fleet.toml", flags_of(folder, policy), {"PYTHONPATH": name}) as suite:
            return counted_of(asyncio.run(load(suite)))


def counted_of(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [one for one in records if one.arrived_s >= SETTLING_S]


def blocks_of(records: Sequence[RequestRecord]) -> Blocks:
    blocks: dict[int, list[RequestRecord]] = {}
    for record in records:
        blocks.setdefault(int(record.arrived_s / BLOCK_S), []).append(record)
    return blocks


def in_time(records: Sequence[RequestRecord]) -> float:
    return sum(latency_s(one) <= SLO_S for one in records) / len(records)


def soon(records: Sequence[RequestRecord]) -> float:
    return sum(latency_s(one) <= SOON_S for one in records) / len(records)


def latency_s(record: RequestRecord) -> float:
    return record.latency_s if record.outcome.answered else DEADLINE_S


def percentile(percent: int) -> Callable[[Sequence[RequestRecord]], float]:
    def of(records: Sequence[RequestRecord]) -> float:
        return quantiles(map(latency_s, records), n=100)[percent - 1]

    return of


def ratio(
    name: str, ours: Blocks, theirs: Blocks, statistic: Callable[[Sequence[RequestRecord]], float], target: Target
) -> Figure:
    """Return our statistic over theirs; samples are pairs of blocks."""

    def of(pairs: Sequence[tuple[Sequence[RequestRecord], Sequence[RequestRecord]]]) -> float:
        sides = ([one for block in side for one in block] for side in zip(*pairs, strict=True))
        own, other = (statistic(side) for side in sides)
        return own / max(other, 1e-9)

    return measured(name, [(ours[at], theirs[at]) for at in ours.keys() & theirs.keys()], of, target)


def moved(load: float, workload: Workload) -> list[Figure]:
    """Return the ratios to LRU in virtual time, with what decides moved."""
    settings, found = ServingSettings(""), []
    for what, fleets in MOVED.items():
        policies = (many_models(settings), lru_models(settings))
        own, theirs = (
            blocks_of(counted_of(simulated(fleet, policy, workload)))
            for fleet, policy in zip(fleets, policies, strict=True)
        )
        name = f"at {load:.0%}, simulated, {what}: {OURS} ÷ {OTHERS[0]}, "
        found.append(ratio(f"{name}images in time", own, theirs, in_time, informative()))
        found.append(ratio(f"{name}p99", own, theirs, percentile(99), informative()))
    return found


def figures_of(load: float, records: Mapping[str, Sequence[RequestRecord]]) -> list[Figure]:
    found = []
    blocks = {name: blocks_of(side) for name, side in records.items()}
    for other in OTHERS:
        name = f"at {load:.0%}: {OURS} ÷ {other}, "
        found.append(ratio(f"{name}images in time", blocks[OURS], blocks[other], in_time, at_least(1.5)))
        found.append(ratio(f"{name}p99", blocks[OURS], blocks[other], percentile(99), at_most(0.6)))
        found.append(ratio(f"{name}images within {SOON_S:g} s", blocks[OURS], blocks[other], soon, informative()))
    for side, of_side in records.items():
        name = f"at {load:.0%}: {side}, "
        found.append(Figure(f"{name}share in time", in_time(of_side), informative(), len(of_side)))
        for percent in (50, 99):
            found.append(Figure(f"{name}p{percent}", percentile(percent)(of_side), informative("s"), len(of_side)))
    return found


def run(options: Options) -> int:
    seconds = 20.0 if options.quick else 45.0
    figures = []
    for load in LOADS:
        workload = requests_of(load, seconds)
        records = {side: play(side, FLEET, workload) for side in OTHERS}
        of_load = figures_of(load, {OURS: play(OURS, AHEAD, workload), **records}) + moved(load, workload)
        for figure in of_load:
            print(figure.line(), flush=True)
        figures += of_load
    figures.sort(key=lambda figure: figure.target.limit is None)
    notes = {"models": MODELS, "workers": WORKERS, "in_time_s": SLO_S, "seconds_each": seconds}
    return publish(options, figures, notes=notes)


if __name__ == "__main__":
    raise SystemExit(run(parse_options("many_models", __doc__)))
