"""Run MoDM's sixteen devices live: emulated ones behind `pentimento up`, ten times as fast, with a cache of images.

Rates and seconds of segments are the paper's; on the run's clock rates are multiplied and seconds divided by `SPEED`.
An image has 10 steps instead of 50 in the same time, since each step costs the emulation processor time; every share
that the tables save is a whole number of steps.
"""

import asyncio
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.papers.constants import MI210_SECONDS
from benchmarks.suites.emulated import FLEETS, clients_of, emulated_suite, fleet_readings, quality_of
from lab.runs import RequestRecord
from lab.runs.answers import ReceivedAnswer
from lab.runs.load import LoadSettings, play
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating
from pentimento.domain.fleet import Fleet
from pentimento.domain.image_request import CacheMode
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS
from pentimento.supervisor.local import LocalSuite

SPEED = 10.0
DEVICES, STEPS = 16, 10
FLEET = FLEETS / "modm-16.toml"
LARGE = "sd35-large"
LARGE_S = MI210_SECONDS["large"]
# The monitor's dwell time and the period of its PID controller are scaled. A plan every two seconds is one every 20 s
# of the paper's time; replicas report every 1.5 s, a third of their lease.
DWELL_S, DAMPING_S, PLAN_INTERVAL_S, LEASE_S = 60.0, 180.0, 2.0, 4.5
# A late image counts as late and not as lost.
PATIENCE_S = 120.0
# A lookup that a busy machine delays would count as a miss of the system, a late report as a lost worker.
PATIENT = {"PENTIMENTO_COMMON_PART_WAIT_FACTOR": "100", "PENTIMENTO_FRONTDOOR_WORKER_SILENCE_S": "20"}


@dataclass(frozen=True)
class MixtureSide:
    """Describe a system on the fleet: its policy, further flags of `pentimento up`, and whether latents and images are
    reused. `damping_s` is the period of the monitor's PID controller, 0 for none; `images_table` replaces the fleet's
    table of images by one similarity and share of steps."""

    name: str
    policy: str
    flags: tuple[str, ...] = ()
    latents: bool = False
    images: bool = False
    damping_s: float = DAMPING_S
    images_table: tuple[float, float] | None = None

    @property
    def cache(self) -> CacheMode:
        """Return how its requests use the cache."""
        return CacheMode.READ_WRITE if self.latents or self.images else CacheMode.OFF

    def settings(self) -> str:
        """Return the controller's settings file."""
        options = [f"dwell_s={DWELL_S / SPEED:g}", f"damping_period_s={self.damping_s / SPEED:g}"]
        return f"[controller]\nlease_s = {LEASE_S}\nplan_interval_s = {PLAN_INTERVAL_S}\npolicy_options = {options}\n"

    def fleet(self) -> str:
        """Return the fleet's file, as fast as the benchmark, with this system's tables of reuse."""
        text, images = FLEET.read_text().split("[reuse.images]")
        text = re.sub(r"(?<=load_s = )[\d.]+", lambda seconds: f"{float(seconds[0]) / SPEED:g}", text)
        text = text.replace("steps = 50\n", f"steps = {STEPS}\n")
        text = text.replace("count = 16\n", f"count = {DEVICES}\nspeed = {SPEED:g}\n")
        if self.cache is CacheMode.OFF:
            return text.replace("cache = true", "cache = false")
        if self.images_table is not None:
            images = "\nsimilarity = [{}]\nsaved_share = [{}]\n".format(*self.images_table)
        if self.images:
            text += f"[reuse.images]{images}"
        if self.latents:
            similarities = [one.min_similarity for one in NIRVANA_LATENT_THRESHOLDS]
            shares = [one.saved_share for one in NIRVANA_LATENT_THRESHOLDS]
            text += f"[reuse.latents]\nsimilarity = {similarities}\nsaved_share = {shares}\n"
        return text


@dataclass(frozen=True)
class PlayedRun:
    """Hold every request's record, and looks at the fleet with their seconds on the same clock."""

    records: Sequence[RequestRecord]
    looks: Sequence[tuple[float, Fleet]]

    def smalls(self, from_s: float = 0.0) -> list[tuple[float, str]]:
        """Return the small models that hits went to from then on, each with its first seconds."""
        found: list[tuple[float, str]] = []
        for at_s, fleet in self.looks:
            small = small_of(fleet)
            if at_s >= from_s and small and [small] != [model for _, model in found[-1:]]:
                found.append((at_s, small))
        return found

    def moves(self, from_s: float = 0.0) -> list[float]:
        """Return the seconds at which a device's model changed in the plan, from then on, one entry a device."""
        found = []
        before: Mapping[str, str] = {}
        for at_s, fleet in self.looks:
            now = {one.worker_id: one.model for one in fleet.plan.assignments}
            changed = [worker for worker, model in now.items() if before.get(worker, model) != model]
            found += [at_s for _ in changed if at_s >= from_s]
            before = now
        return found


def small_of(fleet: Fleet) -> str:
    """Return the small model that hits go to, or an empty text."""
    return next((pool.model for pool in fleet.plan.pools if pool.model != LARGE and pool.routes), "")


def fluctuating_load(prompts: Sequence[str], segments: Sequence[Segment], seed: int) -> Workload:
    """Return requests at the segments' rates for prompts in their order; segments are in the paper's seconds."""
    content = Content(prompts=prompts, slo_classes=(SloClass("standard", PATIENCE_S),), steps=STEPS)
    fast = [Segment(one.duration_s / SPEED, one.rate * SPEED) for one in segments]
    return fluctuating(np.random.default_rng(seed), content, fast)


def edges_of(segments: Sequence[Segment]) -> list[float]:
    """Return where segments begin and the last one ends, in seconds of the run's clock."""
    return [0.0, *(float(edge) for edge in np.cumsum([one.duration_s for one in segments]) / SPEED)]


@contextmanager
def mixture_suite(side: MixtureSide) -> Iterator[LocalSuite]:
    """Yield a suite of that system with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="mixture") as folder:
        fleet, settings = Path(folder) / "fleet.toml", Path(folder) / "settings.toml"
        fleet.write_text(side.fleet())
        settings.write_text(side.settings())
        flags = ("--policy", side.policy, "--config", str(settings), "--encoder", "all-minilm-l6-v2", *side.flags)
        with emulated_suite(fleet, flags, PATIENT) as suite:
            yield suite


def play_mixture(side: MixtureSide, workload: Workload) -> PlayedRun:
    """Play the workload on a new suite, and return its records."""
    with mixture_suite(side) as suite:
        return asyncio.run(_played(suite, side, workload))


async def _played(suite: LocalSuite, side: MixtureSide, workload: Workload) -> PlayedRun:
    settings = LoadSettings(send_deadline=False, cache=side.cache)
    async with clients_of(suite, {"": ""}) as clients, fleet_readings(suite, settings.lead_s) as looks:
        records = await play(workload, clients, settings, score=quality_of, on_answer=print_loss)
    return PlayedRun(records, looks)


def print_loss(record: RequestRecord, received: ReceivedAnswer) -> None:
    """Print why a request ended without an image."""
    if not record.outcome.answered:
        print(f"lost after {record.latency_s:.1f} s, asked at {record.arrived_s:.1f} s: {received.error}", flush=True)


def answered_counts(records: Sequence[RequestRecord], edges: Sequence[float]) -> tuple[list[int], list[int]]:
    """Return requests and answers by segment, each answer a large model's time earlier: a request takes that long."""
    asked, _ = np.histogram([record.arrived_s for record in records], bins=edges)
    ended = [max(record.ended_s - LARGE_S / SPEED, 0.0) for record in records if record.outcome.answered]
    answered, _ = np.histogram(ended, bins=edges)
    return [int(count) for count in asked], [int(count) for count in answered]
