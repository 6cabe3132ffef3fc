"""Measure how a live suite's policy follows f(t) of its cascade when prompts become harder.

    python -m benchmarks.deferral_live

Sixteen emulated devices with DiffServe's first cascade (`cascade-16-half`), planned by `diffserve` and by `joint`. For
`BEFORE_S` seconds the confidences of light images are distributed as in the profile, after that as those of harder
prompts: an image is the less likely the higher its confidence is. The curve that the controller plans by is read from
`GetFleet`, the threshold of a request from its provenance. Realised shares count all light images after the change.
Figures are of the last half of the time after it; DiffServe's paper has none, and 0.05 is our target.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from benchmarks.suites.emulated import FLEETS, clients_of, emulated_suite, fleet_readings, steady_load
from benchmarks.suites.mixture import PATIENT
from lab.emulation.emulated_worker.images import EmulatedImages
from lab.emulation.fleet_file import read_fleet
from lab.runs import RequestRecord
from lab.runs.answers import ReceivedAnswer
from lab.runs.load import LoadSettings, play
from lab.runs.measure import Figure, at_most, between, informative, measured, parse_options, publish
from lab.workloads import Arrival, Workload
from lab.workloads.content import SEEDS
from pentimento.domain.fleet import CONFIDENCE_BINS, Fleet, FollowedDeferral
from pentimento.domain.image_request import CacheMode
from pentimento.policies.plan.settings import DeferralCurve
from pentimento.supervisor.local import LocalSuite

FLEET = FLEETS / "cascade-16-half.toml"
LIGHT = "sd-turbo"
POLICIES = ("diffserve", "joint")
RATE, SLO_S = 12.0, 10.0
BEFORE_S, AFTER_S = 20.0, 150.0
FLAGS = ("--slo-s", str(SLO_S), "--thinning", "off")
LIMIT = 0.05
EDGES = [(part + 1) / CONFIDENCE_BINS for part in range(CONFIDENCE_BINS)]


@dataclass(frozen=True)
class ScoredRequest:
    """Store a light image's arrival and confidence, and the threshold of its route."""

    arrived_s: float
    confidence: float
    threshold: float

    @property
    def deferred(self) -> bool:
        """Return whether the discriminator rejects it. A request that would be late is answered otherwise."""
        return self.confidence <= self.threshold


# A policy's scored requests, and the readings of its fleet.
ScoredRun = tuple[list[ScoredRequest], list[tuple[float, Fleet]]]


@dataclass(frozen=True)
class FollowedRun:
    """Store one policy's requests that a discriminator scored, and the followed f(t) by the time of its reading."""

    policy: str
    requests: Sequence[ScoredRequest]
    curves: Sequence[tuple[float, DeferralCurve]]
    ended_s: float

    @property
    def settled_s(self) -> float:
        """Return the middle of the time after the change."""
        return (BEFORE_S + self.ended_s) / 2

    def realised(self) -> list[float]:
        """Return the share of light images after the change with a confidence up to each edge."""
        after = np.array([one.confidence for one in self.requests if one.arrived_s >= BEFORE_S])
        return [float(np.mean(after <= edge)) for edge in EDGES]

    def gap(self, curve: DeferralCurve) -> float:
        """Return the largest difference from the realised shares."""
        return max(abs(curve.share(edge) - share) for edge, share in zip(EDGES, self.realised(), strict=True))

    def curve_at(self, at_s: float) -> DeferralCurve:
        """Return the newest curve of that time."""
        return max((one for one in self.curves if one[0] <= at_s), key=lambda one: one[0], default=self.curves[0])[1]

    def requests_until_followed(self) -> float | None:
        """Return the requests from the change until the curve is within the limit."""
        found = (at_s for at_s, curve in self.curves if at_s >= BEFORE_S and self.gap(curve) <= LIMIT)
        at_s = next(found, None)
        return None if at_s is None else float(sum(BEFORE_S <= one.arrived_s < at_s for one in self.requests))


def main() -> int:
    options = parse_options("deferral_live", __doc__)
    runs = followed_runs(20.0 if options.quick else AFTER_S)
    figures = [figure for run in runs for figure in figures_of(run, measured_curve())]
    return publish(options, figures, notes={"rate": RATE, "slo_s": SLO_S, "before_s": BEFORE_S, "after_s": AFTER_S})


def measured_curve() -> DeferralCurve:
    """Return f(t) of the profile, which is the fleet's."""
    return DeferralCurve(*(tuple(values) for values in zip(*read_fleet(FLEET).deferral, strict=True)))


def followed_runs(after_s: float) -> list[FollowedRun]:
    """Play the requests on a suite of each policy, at the same time."""
    workload = drifting_load(after_s)
    with ExitStack() as stack:
        suites = [
            stack.enter_context(emulated_suite(FLEET, ("--policy", policy, *FLAGS), PATIENT)) for policy in POLICIES
        ]
        found = asyncio.run(all_scored(suites, workload))
    ended_s = BEFORE_S + after_s
    return [
        FollowedRun(
            policy, requests, [(at_s, curve_of(one)) for at_s, fleet in looks for one in fleet.deferrals], ended_s
        )
        for policy, (requests, looks) in zip(POLICIES, found, strict=True)
    ]


async def all_scored(suites: Sequence[LocalSuite], workload: Workload) -> list[ScoredRun]:
    return await asyncio.gather(*(scored_requests(suite, workload) for suite in suites))


def curve_of(followed: FollowedDeferral) -> DeferralCurve:
    return DeferralCurve((0.0, *followed.thresholds), (0.0, *followed.shares))


def light_images() -> EmulatedImages:
    fleet = read_fleet(FLEET)
    return EmulatedImages(fleet, fleet.model(LIGHT))


def drifting_load(after_s: float) -> Workload:
    """Return requests with light images as in the profile before the change, and harder prompts after it."""
    plain = steady_load(RATE, BEFORE_S + after_s, SLO_S, seed=1)
    images, rng = light_images(), np.random.default_rng(2)

    def seed_of(arrival: Arrival) -> int:
        while True:
            seed = int(rng.integers(SEEDS))
            confidence = images.of(arrival.prompt, seed, 0).label.confidence
            if arrival.at_s < BEFORE_S or rng.random() < 1.0 - confidence:
                return seed

    arrivals = tuple(replace(one, seed=seed_of(one), steps=0) for one in plain.arrivals)
    return replace(plain, arrivals=arrivals)


async def scored_requests(suite: LocalSuite, workload: Workload) -> ScoredRun:
    """Return the requests with a scored light image, and the readings of the fleet."""
    thresholds: dict[str, float] = {}

    def note(record: RequestRecord, answer: ReceivedAnswer) -> None:
        stages = answer.provenance.route.stages if answer.provenance is not None else ()
        if len(stages) > 1 and stages[0].confidence_threshold > 0.0:
            thresholds[record.request_id] = stages[0].confidence_threshold

    settings, images = LoadSettings(cache=CacheMode.OFF), light_images()
    async with clients_of(suite, {"": ""}) as clients, fleet_readings(suite, settings.lead_s) as looks:
        records = await play(workload, clients, settings, on_answer=note)
    return [
        ScoredRequest(
            record.arrived_s,
            images.of(arrival.prompt, arrival.seed, 0).label.confidence,
            thresholds[record.request_id],
        )
        for arrival, record in zip(workload.arrivals, records, strict=True)
        if record.request_id in thresholds
    ], looks


def figures_of(run: FollowedRun, profiled: DeferralCurve) -> Iterator[Figure]:
    """Yield the gaps of the curves, then planned less observed shares, by the followed curve and by the profile."""
    settled = [run.gap(curve) for at_s, curve in run.curves if at_s >= run.settled_s]
    requests = [one for one in run.requests if one.arrived_s >= run.settled_s]
    name = f"{run.policy}: largest gap of f(t)"
    yield Figure(f"{name}, followed", fmean(settled) if settled else None, at_most(LIMIT), len(settled))
    yield Figure(f"{name}, followed, worst reading", max(settled, default=None), informative(), len(settled))
    yield Figure(f"{name}, as profiled", run.gap(profiled), informative(), len(run.requests))
    yield Figure(
        f"{run.policy}: requests from the change until it is within {LIMIT:g}",
        run.requests_until_followed(),
        informative("requests"),
        1,
    )
    for curve, target in (("followed", between(-LIMIT, LIMIT)), ("profiled", informative())):
        pairs = [
            ((run.curve_at(one.arrived_s) if curve == "followed" else profiled).share(one.threshold), one.deferred)
            for one in requests
        ]
        yield measured(
            f"{run.policy}: deferred share, planned by the {curve} curve less observed", pairs, excess, target
        )


def excess(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the mean planned share less the share of deferred requests."""
    return fmean(planned for planned, _ in pairs) - fmean(deferred for _, deferred in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
