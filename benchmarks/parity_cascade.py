"""Prepare `parity`'s real cascade: two workers of each model, a discriminator, the cache on, under a changing trace.

Measured apart from the compared runs: both models' costs, on an otherwise idle machine; and the confidences of all
light images, by a suite that accepts every one, so that the simulator defers the same requests (DiffServe's
simulator has its discriminator's scores, too). The prompts are a scene log of the zoo, and their embeddings are known.

Latents of the heavy model are reused. Images are not: a text's similarity to an image is unknown before the image
exists. The discriminator reads images alone, so that no prompt skips the light model.
"""

import asyncio
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cache_parity import RULES
from benchmarks.papers.constants import AZURE_SHAPE
from benchmarks.selector_profile import PROFILES, LocalEncoder
from lab.emulation.costs import costs_of
from lab.emulation.fleet_file import EmulatedFleet
from lab.runs import RequestRecord, StartKind
from lab.simulator import Scenario
from lab.simulator.cache import CacheSettings, SimulatedCache
from lab.simulator.scenario import SimulatedModel
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.policies.plan.registry import CacheUse
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.kinds import thresholds
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import local_suite
from pentimento.supervisor.models import find_model
from services.embedder.model import open_model
from zoo.registry import WEIGHTS
from zoo.scene_log import SceneLog, clip_embedder, write_scene_log

LIGHT, HEAVY, DISCRIMINATOR = "tiny-light", "tiny-heavy", "tiny-discriminator"
COPIES, STEPS = 2, 50
ENCODER = WEIGHTS / "tiny-clip"
REUSE = PROFILES / f"latents-{HEAVY}.json"
# Share of the light images that the threshold defers, so that the median answer is the heavy model's. The trace's peak
# ÷ its low.
DEFERRED, SWING = 0.65, 4.0
# A confidence of 0 would not be scored; every one exceeds this.
ACCEPT_ALL = 1e-30
# concurrent requests of the suite that gives confidences; prompts that give the threshold
PROBING, PROBED = 8, 200
SETTINGS = "[common]\nquality_sample_share = 0.0\n"


@dataclass
class TracedLog:
    """Hand out a log's prompts in their order, each once, at times of the Azure trace. A prompt's seed is its row.

    `threshold`: confidences up to it are deferred. `confidences` are those known of light images, by prompt and seed.
    """

    log: SceneLog
    flags: Sequence[str]
    threshold: float
    confidences: dict[tuple[str, int], float] = field(default_factory=dict)
    next_row: int = 0
    images: dict[str, bytes] = field(default_factory=dict)

    def workload(self, rate: float, duration_s: float, slo_s: float, seed: int) -> Workload:
        """Return the next requests, `rate` per second on average."""
        first, slo = self.next_row, (SloClass("standard", slo_s),)
        content = Content(self.log.prompts, slo_classes=slo, first_prompt=first)
        plain = fluctuating(np.random.default_rng(seed), content, trace(rate, duration_s))
        self.next_row += len(plain.arrivals)
        if self.next_row > len(self.log.prompts):
            raise RuntimeError(f"the log has {len(self.log.prompts)} prompts, and the loads need more")
        # each model takes its default steps
        arrivals = (replace(one, steps=0, seed=first + number) for number, one in enumerate(plain.arrivals))
        return replace(plain, arrivals=tuple(arrivals))

    def simulated(self, workload: Workload) -> Workload:
        """Return the workload with embeddings: first those of earlier prompts with latents in the cache (`warmed`)."""
        rows = [arrival.seed for arrival in workload.arrivals]
        known = ((row, self.confidences.get((self.log.prompts[row], row), 1.0)) for row in range(rows[0]))
        held = stored(self.log.embeddings, [row for row, confidence in known if confidence <= self.threshold])
        arrivals = (
            replace(arrival, embedding_row=len(held) + number) for number, arrival in enumerate(workload.arrivals)
        )
        return replace(workload, arrivals=tuple(arrivals), embeddings=self.log.embeddings[[*held, *rows]])

    def learn(self, workload: Workload, records: Sequence[RequestRecord]) -> None:
        """Note of a run that measures speeds which light images were deferred."""
        for arrival, record in zip(workload.arrivals, records, strict=True):
            if record.outcome.answered:
                self.confidences[arrival.prompt, arrival.seed] = 0.0 if record.deferred else 1.0

    def probe(self, workloads: Iterable[Workload]) -> None:
        """Generate the light images of compared runs once more, on a suite of their own, for their confidences."""
        rows = [arrival.seed for workload in workloads for arrival in workload.arrivals]
        self.confidences |= probed(self.flags, self.log.prompts, rows)

    def keep(self, completed: Completed) -> None:
        """Keep an image of a live run until it is scored."""
        self.images[completed.request_id] = completed.image

    def scored(self, workload: Workload, records: Sequence[RequestRecord]) -> list[RequestRecord]:
        """Return the workload's records with the quality of each kept image: its cosine with its prompt."""
        encoder = LocalEncoder(open_model(ENCODER))
        shown = [number for number, record in enumerate(records) if record.request_id in self.images]
        if not shown:
            return list(records)
        texts = encoder.embed_texts([workload.arrivals[number].prompt for number in shown])
        images = encoder.embed_images([self.images.pop(records[number].request_id) for number in shown])
        cosines = dict(zip(shown, (texts * images).sum(axis=1).tolist(), strict=True))
        return [replace(record, quality=cosines.get(number)) for number, record in enumerate(records)]


def trace(rate: float, duration_s: float) -> list[Segment]:
    """Return the Azure trace's segments, `rate` per second on average."""
    shape = [1.0 / SWING + share * (1.0 - 1.0 / SWING) for share in AZURE_SHAPE]
    mean = statistics.fmean(shape)
    return [Segment(duration_s / len(shape), rate * share / mean) for share in shape]


def stored(embeddings: np.ndarray, rows: Iterable[int]) -> list[int]:
    """Return the rows that leave latents in a cache which meets them in this order: images that start from an entry
    leave none."""
    cache = SimulatedCache(CacheUse.LATENTS, "fifo", cache_settings(), embeddings)
    found: list[int] = []
    for row in rows:
        if cache.lookup("", HEAVY, row, STEPS).kind is StartKind.NOISE:
            cache.insert("", HEAVY, row, STEPS)
            found.append(row)
    return found


def cache_settings() -> CacheSettings:
    """Return the settings of the gateway's cache: latents by the heavy model's profile, and room for all."""
    profile = read_profiles([REUSE]).profiles[0]
    return CacheSettings(capacity=10**9, rules=replace(RULES, latents=thresholds(profile), images=()))


def traced_log(count: int, seed: int, flags: Sequence[str]) -> TracedLog:
    """Return a log of `count` prompts, with a threshold that defers `DEFERRED` of its last ones."""
    log = write_scene_log(count + PROBED, clip_embedder(ENCODER), np.random.default_rng(seed))
    found = probed(flags, log.prompts, range(count, count + PROBED))
    return TracedLog(log, flags, float(np.quantile(list(found.values()), DEFERRED)))


def probed(flags: Sequence[str], prompts: Sequence[str], rows: Sequence[int]) -> dict[tuple[str, int], float]:
    """Return the confidences of the rows' light images, by prompt and seed, from a suite that accepts every one."""
    with local_suite([*flags, "--confidence-threshold", str(ACCEPT_ALL)]) as suite:
        return asyncio.run(confidences_of(suite.endpoint.public, prompts, rows))


async def confidences_of(address: str, prompts: Sequence[str], rows: Sequence[int]) -> dict[tuple[str, int], float]:
    """Return the confidences of light images, by prompt and seed."""
    found: dict[tuple[str, int], float] = {}
    left = iter(rows)
    async with AsyncClient(address) as client:

        async def one_after_the_other() -> None:
            for row in left:
                image = await client.generate(ImageRequest(prompts[row], seed=row, cache=CacheMode.OFF))
                confidence = image.provenance.discriminator_confidence
                # an image without one was deferred
                found[prompts[row], row] = 0.0 if confidence is None else confidence

        async with asyncio.TaskGroup() as group:
            for _ in range(PROBING):
                group.create_task(one_after_the_other())
    return found


def profiled(folder: Path, repeats: str) -> dict[str, Path]:
    """Return the files of both models' costs, measured one after the other."""
    files = {model: folder / f"{model}.json" for model in (LIGHT, HEAVY)}
    for model, file in files.items():
        found = find_model(model)
        steps = str(20 if model == HEAVY else 12)
        flags = ["--model", str(found.path), "--out", str(file), "--batch-sizes", "1,2,4,8", "--steps", steps]
        command = [sys.executable, "-m", "services.unet_worker.profiling", "cost", *flags, "--repeats", repeats]
        subprocess.run(command, check=True)
    return files


def suite_flags(folder: Path, costs: Mapping[str, Path]) -> list[str]:
    """Return the flags of the live suite, without its threshold."""
    settings = folder / "cascade.settings.toml"
    settings.write_text(SETTINGS)
    flags = ["--cascade", f"{LIGHT},{HEAVY}", "--discriminator", DISCRIMINATOR, "--workers", str(COPIES)]
    flags += ["--device", "cpu", "--thinning", "off", "--config", str(settings)]
    return flags + [word for file in (*costs.values(), REUSE) for word in ("--profiles", str(file))]


def write_fleet(folder: Path, costs: Mapping[str, Path]) -> Path:
    """Write the fleet's file for the simulator; its threshold is the log's (`with_cascade`)."""
    models = "".join(f'[[models]]\nname = "{model}"\nprofile = "{file}"\n' for model, file in costs.items())
    # The profile of the heavy model measured fewer steps than an image has.
    models += f"steps = {STEPS}\n"
    devices = "".join(f'[[devices]]\nname = "{m[5:]}"\ncount = {COPIES}\nmodels = ["{m}"]\n' for m in costs)
    path = folder / "cascade.toml"
    path.write_text(
        f'default_model = "{HEAVY}"\ncascade = ["{LIGHT}", "{HEAVY}"]\n'
        f"{models}{devices}[discriminator]\nscore_s = 0.01\n"
    )
    return path


def processors() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0))


def shared_capacity_per_s(fleet: EmulatedFleet) -> float:
    """Return the images per second of a cascade of workers that share the machine's processors, in full batches."""
    light, heavy = (costs_of(fleet.model(model)) for model in (LIGHT, HEAVY))
    seconds = [one.run_s(one.max_batch) / one.max_batch + one.finish.mean_s for one in (light, heavy)]
    return processors() / (seconds[0] + DEFERRED * seconds[1])


def with_cascade(scenario: Scenario, log: TracedLog) -> Scenario:
    """Return the scenario with shared processors, the cache, the threshold, and the known confidences."""
    return replace(
        scenario,
        policy=replace(scenario.policy, cache=CacheUse.LATENTS),
        cache=cache_settings(),
        dataplane=replace(scenario.dataplane, confidence_threshold=log.threshold),
        processors=processors(),
        confidences=log.confidences,
    )


def warmed(scenario: Scenario, workload: Workload) -> Scenario:
    """Return the scenario with the cached prompts that a workload lists before its own."""
    if workload.embeddings is None:
        return scenario
    held = len(workload.embeddings) - len(workload.arrivals)
    return replace(scenario, cache=replace(scenario.cache, warm_count=held))


def with_qualities(scenario: Scenario, records: Sequence[RequestRecord]) -> Scenario:
    """Return the scenario with the mean quality of each model's images, and the share that a hit keeps."""

    def changed(model: SimulatedModel) -> SimulatedModel:
        own = [(one.start, one.quality) for one in records if one.model == model.name and one.quality is not None]
        noise = [quality for start, quality in own if start is StartKind.NOISE]
        hits = [quality for start, quality in own if start is not StartKind.NOISE]
        if not noise:
            return model
        mean = statistics.fmean(noise)
        return replace(model, quality=mean, reuse_quality=statistics.fmean(hits) / mean if hits else 1.0)

    return replace(scenario, models=tuple(changed(model) for model in scenario.models))


started = partial(local_suite, environment={"PENTIMENTO_FRONTDOOR_FALL_BACK": "false"})
