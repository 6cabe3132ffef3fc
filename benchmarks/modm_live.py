"""Compare MoDM, NIRVANA, the joint policy and vanilla on a live emulated fleet with a cache.

    python -m benchmarks.modm_live --data DIR

Sixteen emulated MI210s with MoDM's models, ten times as fast, behind `pentimento up --emulate --policy NAME`.
DiffusionDB's prompts in their order come at rising rates, a level after the other, after a warm-up that does not count;
MoDM also gets prompts that were chosen for diversity (little locality; the paper has MJHQ). Each system has its own
suite and a cache that begins empty: MoDM of images, NIRVANA of latents, joint of both. Vanilla reads no prompt, so one
run of it stands for both logs; it and NIRVANA get two of the levels below the last.

The last level, 50 a minute, is more than any system carries. Throughput is the answers a minute from its begin until
nine tenths of the answers after that begin. A rate is held while at most 5 % of the requests of its level and of
every lower one take longer than 2 or 4 times the large model's time. Device seconds stand for joules: a second of a
small model counts as one of the large model. Qualities are the published CLIPScores of the models.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.prompt_logs import DIFFUSIONDB, DIVERSE
from benchmarks.suites.mixture import LARGE_S, SPEED, MixtureSide, edges_of, fluctuating_load, play_mixture
from lab.runs import RequestRecord
from lab.runs.figures import mean_quality
from lab.runs.measure import Figure, Target, at_least, at_most, informative, parse_options, publish
from lab.workloads import Segment

# Without noise of each request's own, which neither paper has.
PLAIN = ("--renoised-share", "0")
VANILLA = MixtureSide("vanilla", "vanilla")
NIRVANA = MixtureSide("NIRVANA only", "nirvana-only", PLAIN, latents=True)
MODM = MixtureSide("MoDM", "modm", PLAIN, images=True)
JOINT = MixtureSide("joint", "joint", (*PLAIN, "--slo-s", f"{4 * LARGE_S / SPEED:g}"), latents=True, images=True)
MOST = 50
RATES = (10, 14, 22, 26, MOST)
FEWER = (10, 14, MOST)
RUNS = (
    ("DiffusionDB", DIFFUSIONDB, VANILLA, FEWER),
    ("DiffusionDB", DIFFUSIONDB, NIRVANA, FEWER),
    ("DiffusionDB", DIFFUSIONDB, MODM, RATES),
    ("DiffusionDB", DIFFUSIONDB, JOINT, RATES),
    ("low locality", DIVERSE, MODM, RATES),
)
# MoDM with SDXL, 7.2: throughput ÷ vanilla's on DiffusionDB and on MJHQ; A.4: energy saved on DiffusionDB.
PAPER = {"DiffusionDB": at_least(2.5), "low locality": at_least(2.1)}
PAPER_ENERGY = at_most(1 - 0.467)
WARM_UP = Segment(180.0, 14 / 60)
LEVEL_S, HELD = 120.0, 0.05


@dataclass(frozen=True)
class CarriedLoad:
    """Hold the results of one system on a log: the levels' rates, answers a minute under the last, shares of late
    requests by level (2 and 4 times the large model's time), hits, device seconds an answer, and mean quality."""

    log: str
    system: str
    rates: Sequence[int]
    per_minute: float
    late: Mapping[int, Sequence[float]]
    hit_share: float
    device_s: float
    quality: float
    request_count: int

    def held_per_minute(self, times: int) -> int:
        """Return the highest rate with an SLO of `times` the large model's time held there and at every lower level; 0
        for none."""
        held = 0
        for rate, late in zip(self.rates, self.late[times], strict=True):
            if late > HELD:
                break
            held = rate
        return held


def main() -> int:
    options = parse_options("modm_live", __doc__, add_options)
    found = []
    for log, file, side, rates in RUNS:
        prompts = file.prompts(options.rest["data"])
        found.append(carried(log, side, prompts, rates, LEVEL_S * (0.2 if options.quick else 1.0)))
        print(found[-1], flush=True)
    return publish(options, list(figures_of(found)), notes={"speed": SPEED, "level_s": LEVEL_S / SPEED})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with prompts/")


def carried(log: str, side: MixtureSide, prompts: Sequence[str], rates: Sequence[int], level_s: float) -> CarriedLoad:
    """Play a warm-up and all levels on a suite of that system."""
    segments = [WARM_UP, *(Segment(level_s, rate / 60) for rate in rates)]
    records = play_mixture(side, fluctuating_load(prompts, segments, seed=1)).records
    edges = edges_of(segments)[1:]
    counted = [record for record in records if record.arrived_s >= edges[0]]
    answered = [record for record in counted if record.outcome.answered]
    return CarriedLoad(
        log=log,
        system=side.name,
        rates=rates,
        per_minute=throughput([record.ended_s for record in answered if record.ended_s >= edges[-2]], edges[-2]),
        late={times: late_shares(counted, edges, times * LARGE_S / SPEED) for times in (2, 4)},
        hit_share=fmean([float(record.start_step > 0) for record in counted]),
        device_s=SPEED * sum(record.device_s for record in counted) / max(len(answered), 1),
        quality=mean_quality(answered),
        request_count=len(counted),
    )


def throughput(ends_s: Sequence[float], from_s: float) -> float:
    """Return the answers a minute of the paper's until nine tenths have come; the last ones leave devices idle."""
    counted = sorted(ends_s)[: max(round(0.9 * len(ends_s)), 1)]
    return 60.0 * len(counted) / ((counted[-1] - from_s) * SPEED)


def late_shares(records: Sequence[RequestRecord], edges: Sequence[float], limit_s: float) -> list[float]:
    """Return the share of each level's requests without an answer in time."""
    late = [float(not record.outcome.answered or record.latency_s > limit_s) for record in records]
    arrived = [record.arrived_s for record in records]
    asked, _ = np.histogram(arrived, bins=edges)
    missed, _ = np.histogram(arrived, bins=edges, weights=late)
    return [float(one) for one in missed / np.maximum(asked, 1)]


def figures_of(found: Sequence[CarriedLoad]) -> Iterator[Figure]:
    """Yield every system's figures, ÷ vanilla's where they have a unit."""
    vanilla = next(one for one in found if one.system == VANILLA.name)
    for one in found:
        yield from of_system(one, vanilla, PAPER[one.log] if one.system == MODM.name else informative())


def of_system(one: CarriedLoad, vanilla: CarriedLoad, target: Target) -> Iterator[Figure]:
    """Yield one system's figures; `target` is its throughput's."""
    name, count = f"{one.log}, {one.system}", one.request_count
    if one is not vanilla:
        ratio = one.per_minute / vanilla.per_minute
        yield Figure(f"{name}: throughput ÷ vanilla's", ratio, target, count)
        energy = PAPER_ENERGY if one.system == MODM.name and one.log == vanilla.log else informative()
        yield Figure(f"{name}: device seconds an image ÷ vanilla's", one.device_s / vanilla.device_s, energy, count)
        yield Figure(f"{name}: requests that start from the cache", one.hit_share, informative(), count)
        yield Figure(f"{name}: quality ÷ vanilla's", one.quality / vanilla.quality, informative(), count)
    for times in (2, 4):
        yield Figure(f"{name}: held to {times}x", one.held_per_minute(times), informative("a minute"), count)


if __name__ == "__main__":
    raise SystemExit(main())
