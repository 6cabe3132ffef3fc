"""Fit real devices' speeds and their variation from separate runs: simulated devices with images that take the same
time, vary as much, and correlate as much with later ones. Devices of each model have their own speed.

A batch grows with an image's time, so that no formula gives the speed; figures are approached by simulating the same
arrivals.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import numpy as np

from lab.emulation.speed import STEADY, Both, SpeedChanges, SpeedCourse
from lab.runs import RequestRecord
from lab.runs.answers import COARSE
from lab.simulator import Scenario, Simulation
from lab.simulator.scenario import Delays, SimulatedDevices
from lab.workloads import Workload
from pentimento.profiles.costs import Cost

STEPS, SCATTERING_STEPS, TOLERANCE = 10, 6, 0.003
SEEDS = range(3)
PERIODS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# Below it, images vary only by their steps.
LEAST_VARIATION = 0.01


@dataclass(frozen=True)
class ObservedRun:
    """Hold arrivals and their records; `scenario` is the suite except for its device's speed."""

    scenario: Scenario
    workload: Workload
    records: list[RequestRecord]


@dataclass(frozen=True)
class ImageTimes:
    """Hold images' mean seconds on the device, their standard deviation as a share of it, and the correlation of an
    image's time with that of the image that began at its end."""

    mean_s: float
    spread: float
    persistence: float


def image_times(records: Sequence[RequestRecord]) -> ImageTimes:
    """Return the times of at least two images."""
    spans = sorted(span for record in records if record.outcome.answered and (span := _span(record)))
    began, ended = (np.array(column) for column in zip(*spans, strict=True))
    seconds = ended - began
    after = np.searchsorted(began, ended)
    known = after < len(spans)
    pairs = np.array([seconds[known], seconds[after[known]]])
    persistence = float(np.corrcoef(pairs)[0, 1]) if known.sum() > 2 and (pairs.std(axis=1) > 0.0).all() else math.nan
    return ImageTimes(float(seconds.mean()), float(seconds.std() / seconds.mean()), persistence)


def with_speeds(scenario: Scenario, speeds: Mapping[str, float]) -> Scenario:
    """Return the scenario with the devices' speeds, by the model that they hold."""
    devices = tuple(replace(devices, speed=speeds[devices.resident]) for devices in scenario.devices)
    return replace(scenario, devices=devices)


def models_of(scenario: Scenario) -> list[str]:
    """Return the models that devices hold."""
    return [devices.resident for devices in scenario.devices]


def times_by_model(scenario: Scenario, records: Sequence[RequestRecord]) -> dict[str, ImageTimes]:
    """Return the image times on the devices of each model; a model of fewer than two images is left out."""
    found = {}
    for model in models_of(scenario):
        own = [record for record in records if record.model == model and record.outcome.answered]
        if len(own) > 1:
            found[model] = image_times(own)
    return found


def with_course(scenario: Scenario, course: SpeedCourse) -> Scenario:
    """Return the scenario with this course of its devices' speeds, in addition to its own."""

    def changed(devices: SimulatedDevices) -> SimulatedDevices:
        return replace(devices, speed_changes=Both(devices.speed_changes, course))

    return replace(scenario, devices=tuple(changed(devices) for devices in scenario.devices))


def speeds_seen(run: ObservedRun) -> dict[str, float]:
    """Return the speeds, by model, at which simulated images take as long as those of the run."""
    seen = times_by_model(run.scenario, run.records)
    speeds = dict.fromkeys(models_of(run.scenario), 1.0)
    for _ in range(STEPS):
        found = _simulated(with_speeds(run.scenario, speeds), run.workload)
        ratios = {model: found[model].mean_s / seen[model].mean_s for model in seen if model in found}
        if all(abs(ratio - 1.0) < TOLERANCE for ratio in ratios.values()):
            break
        speeds |= {model: speeds[model] * ratio**0.7 for model, ratio in ratios.items()}
    return speeds


def changes_seen(runs: Sequence[ObservedRun]) -> SpeedChanges:
    """Return the changes with which simulated images vary as much, and as persistently, as those of all runs. Each
    `scenario` has its speed."""
    seen = _together([one for run in runs for one in times_by_model(run.scenario, run.records).values()])
    found = [_scattering_as(seen.spread, runs, PERIODS_S[0])]
    if found[0][0].variation < LEAST_VARIATION:
        return STEADY
    found += [_scattering_as(seen.spread, runs, period_s) for period_s in PERIODS_S[1:]]
    # The longer a speed lasts, the more consecutive images correlate.
    for (shorter, below), (longer, above) in pairwise(found):
        if seen.persistence < above.persistence:
            share = (seen.persistence - below.persistence) / (above.persistence - below.persistence)
            return _between(shorter, longer, min(max(share, 0.0), 1.0))
    return found[-1][0]


def _scattering_as(spread: float, runs: Sequence[ObservedRun], period_s: float) -> tuple[SpeedChanges, ImageTimes]:
    variation = 0.0
    for _ in range(SCATTERING_STEPS):
        changes = SpeedChanges(variation, period_s)
        by_run = [_simulated(with_course(run.scenario, changes), run.workload) for run in runs]
        simulated = _together([one for of_run in by_run for one in of_run.values()])
        variation = math.sqrt(max(variation**2 + 0.7 * (spread**2 - simulated.spread**2), 0.0))
    return SpeedChanges(variation, period_s), simulated


def _between(shorter: SpeedChanges, longer: SpeedChanges, share: float) -> SpeedChanges:
    variation = shorter.variation + share * (longer.variation - shorter.variation)
    return SpeedChanges(variation, shorter.period_s * (longer.period_s / shorter.period_s) ** share)


def _simulated(scenario: Scenario, workload: Workload) -> dict[str, ImageTimes]:
    runs = [times_by_model(scenario, Simulation(scenario, workload, Random(seed)).run()) for seed in SEEDS]
    return {model: _together([run[model] for run in runs if model in run]) for model in runs[0]}


def _together(all_times: Sequence[ImageTimes]) -> ImageTimes:
    """Return means; of spreads the root of the mean square."""
    known = [one.persistence for one in all_times if math.isfinite(one.persistence)]
    return ImageTimes(
        statistics.fmean(one.mean_s for one in all_times),
        math.sqrt(statistics.fmean(one.spread**2 for one in all_times)),
        statistics.fmean(known) if known else math.nan,
    )


def _span(record: RequestRecord) -> tuple[float, float] | None:
    """Return a device's start and end of the image; of a deferred request's last one."""
    queued = [number for number, stage in enumerate(record.stages) if stage.name == "queue"]
    last = record.stages[queued[-1] :] if queued else record.stages
    stages = [stage for stage in last if COARSE.get(stage.name, stage.name) == "paint"]
    return (stages[0].began_s, stages[-1].ended_s) if stages else None


# delays' stages, by the name of the simulator's
DELAYS = {"accept": "accept", "route": "route", "attempt": "attempt", "execute": "send", "result": "receive"}
SCORE = "score"


def with_delays(scenario: Scenario, records: Sequence[RequestRecord]) -> Scenario:
    return replace(scenario, delays=delays_of(records, scenario.delays))


def delays_of(records: Sequence[RequestRecord], known: Delays) -> Delays:
    """Return the delays outside queues and devices: the journal, and transport."""
    answered = [spent for record in records if record.outcome.answered and (spent := _spent(record))]
    if not answered:
        raise RuntimeError("the calibration run answered no request")
    cost = {name: cost_of([spent[name] for spent in answered]) for name in answered[0]}
    scored = [stage.ended_s - stage.began_s for record in records for stage in record.stages if stage.name == SCORE]
    return replace(known, score=cost_of(scored) if scored else known.score, **cost)


def cost_of(samples_s: Sequence[float]) -> Cost:
    """Return costs without the slowest hundredth: a stall of the whole machine is no delay of the suite."""
    ascending = sorted(samples_s)
    return Cost.of(ascending[: math.ceil(0.99 * len(ascending))])


def _spent(record: RequestRecord) -> dict[str, float] | None:
    """Return the delays of an image with one attempt; the way back begins at its last stage's end."""
    stages = {stage.name: stage for stage in record.stages}
    if record.deferred or len(stages) < len(record.stages) or not stages.keys() >= {*DELAYS.values()}:
        return None
    spent = {name: stages[stage].ended_s - stages[stage].began_s for name, stage in DELAYS.items()}
    answered_s = max(stage.ended_s for stage in record.stages)
    return {**spent, "answer": max(record.ended_s - answered_s, 0.0)}
