"""Play MoDM's swinging load on a live emulated fleet: its monitor with and without the PID controller, in both modes.

    python -m benchmarks.monitor_live --data DIR

Sixteen emulated MI210s with MoDM's models, ten times as fast, behind `pentimento up --emulate --policy modm`;
DiffusionDB's prompts in their order, embedded by a sentence encoder, over a cache of images that begins empty. Four
levels of Fig. 17's load (14, 22, 26 and 18 requests a minute), six minutes each, follow a warm-up that does not
count; then 30 requests a minute in quality and in throughput mode. The controller plans every two seconds, 20 s of the
paper's time; the paper's monitor plans every 180 s.

A segment's answers count from the large model's time after its begin to the same after its end, as in `monitor`.
*Off by* is the mean distance of the planned large workers from the mode's equation for the segment's real rate and
hits, in the second half of each segment.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from benchmarks.papers.constants import MI210_SECONDS
from benchmarks.prompt_logs import DIFFUSIONDB
from benchmarks.suites.mixture import (
    DEVICES,
    LARGE_S,
    PLAN_INTERVAL_S,
    SPEED,
    STEPS,
    MixtureSide,
    PlayedRun,
    answered_counts,
    edges_of,
    fluctuating_load,
    play_mixture,
    small_of,
)
from lab.runs import RequestRecord
from lab.runs.measure import (
    Figure,
    Notes,
    at_least,
    at_most,
    counted,
    informative,
    measured,
    parse_options,
    publish,
    share,
)
from lab.workloads import Segment
from lab.workloads.builders import MODM_FLUCTUATION
from pentimento.policies.plan.mixture import MixtureLoad, MixturePolicy, large_count
from pentimento.policies.plan.settings import MixtureMode

DAMPED = MixtureSide("with PID", "modm", images=True)
UNDAMPED = MixtureSide("without PID", "modm", images=True, damping_s=0.0)
MODES = {
    mode: MixtureSide(f"{mode.value} mode", "modm", ("--modm-mode", mode.value), images=True) for mode in MixtureMode
}
WARM_UP = Segment(180.0, 14 / 60)
LEVELS, LEVEL_S = MODM_FLUCTUATION[1:5], 360.0
STEADY = [Segment(240.0, 30 / 60)] * 2
LEAST_FOLLOWED = 0.97


@dataclass(frozen=True)
class FollowedLoad:
    """Hold one run: requests and answers by counted segment, the planned large workers' distance from the equation in
    each, reallocated devices, hours of the paper's time, requests without an answer, and small models in order."""

    side: str
    asked: Sequence[int]
    answered: Sequence[int]
    off_by: Sequence[float]
    move_count: int
    hours: float
    lost_count: int
    smalls: Sequence[str]

    @property
    def kept_count(self) -> int:
        """Return the answers, no more than requests in any segment."""
        return sum(map(min, self.asked, self.answered))


def main() -> int:
    options = parse_options("monitor_live", __doc__, add_options)
    prompts = DIFFUSIONDB.prompts(options.rest["data"])
    level_s = 60.0 if options.quick else LEVEL_S
    levels = [Segment(level_s, one.rate) for one in LEVELS]
    swings = [followed(side, MixtureMode.QUALITY, prompts, levels) for side in (DAMPED, UNDAMPED)]
    steady = {mode: followed(side, mode, prompts, STEADY) for mode, side in MODES.items()}
    notes: Notes = {"speed": SPEED, "plan_interval_s": PLAN_INTERVAL_S, "small_models": ", ".join(swings[0].smalls)}
    return publish(options, figures_of(swings, steady), notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with prompts/")


def followed(side: MixtureSide, mode: MixtureMode, prompts: Sequence[str], segments: Sequence[Segment]) -> FollowedLoad:
    """Return what became of a load after the warm-up."""
    run = play_mixture(side, fluctuating_load(prompts, [WARM_UP, *segments], seed=1))
    edges = edges_of([WARM_UP, *segments])[1:]
    asked, answered = answered_counts(run.records, edges)
    found = FollowedLoad(
        side=side.name,
        asked=asked,
        answered=answered,
        off_by=[off_by(run, mode, span) for span in pairwise(edges)],
        move_count=sum(edges[0] <= at_s < edges[-1] for at_s in run.moves()),
        hours=(edges[-1] - edges[0]) * SPEED / 3600.0,
        lost_count=sum(not record.outcome.answered for record in run.records),
        smalls=[model for _, model in run.smalls(edges[0])],
    )
    print(found, flush=True)
    return found


def off_by(run: PlayedRun, mode: MixtureMode, span: tuple[float, float]) -> float:
    """Return the mean distance of planned large workers from the equation in the second half of a segment."""
    began, ended = span
    load = load_of([record for record in run.records if began <= record.arrived_s < ended], (ended - began) * SPEED)
    distances = []
    for at_s, fleet in run.looks:
        if fleet.steered is not None and (began + ended) / 2 <= at_s < ended:
            small_s = MI210_SECONDS[small_of(fleet) or "sdxl"]
            rates = (MixturePolicy.headroom / LARGE_S, MixturePolicy.headroom / small_s)
            wanted = max(large_count(mode, load, DEVICES, *rates), 1)
            distances.append(abs(fleet.steered.planned_count - wanted))
    return fmean(distances) if distances else 0.0


def load_of(records: Sequence[RequestRecord], seconds: float) -> MixtureLoad:
    """Return the load of requests over the paper's seconds, by their real starts."""
    starts = [(record.start_step / STEPS, 1 / len(records)) for record in records]
    return MixtureLoad.of(len(records) / seconds, starts)


def figures_of(swings: Sequence[FollowedLoad], steady: dict[MixtureMode, FollowedLoad]) -> list[Figure]:
    """Return the swinging load's figures, with the target on the shipped monitor, then both modes'."""
    figures = []
    for run in swings:
        target = at_least(LEAST_FOLLOWED) if run.side == DAMPED.name else informative()
        figures.append(share(f"{run.side}: answered ÷ asked", run.kept_count, sum(run.asked), target))
        moves = run.move_count / run.hours
        figures.append(Figure(f"{run.side}: devices that change their model", moves, informative("an hour"), 1))
        figures.append(measured(f"{run.side}: large workers off Eq. 6-10 by", run.off_by, fmean, informative()))
    for mode, run in steady.items():
        name = f"30 a minute, {mode.value} mode"
        figures.append(share(f"{name}: answered ÷ asked", run.kept_count, sum(run.asked), informative()))
    throughput = steady[MixtureMode.THROUGHPUT]
    figures.append(Figure("throughput mode: large workers off Eq. 11 by", throughput.off_by[-1], at_most(1.0), 1))
    ratio = throughput.kept_count / max(steady[MixtureMode.QUALITY].kept_count, 1)
    figures.append(Figure("answered in throughput mode ÷ in quality mode", ratio, at_least(1.0), 1))
    runs = [*swings, *steady.values()]
    asked = sum(sum(run.asked) for run in runs)
    figures.append(counted("requests lost", sum(run.lost_count for run in runs), asked, at_most(0)))
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
