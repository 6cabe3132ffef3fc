"""What `paper_figures` simulates: the papers' models, fleets and loads, from the constants that they published."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from pentimento.dataplane import DataplaneSettings
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.serving import SERVING_POLICIES, ServingPolicy, ServingSettings
from pentimento.policies.serving.cascades import CascadeAllocator
from pentimento.reports import Report, StartKind, make_report
from pentimento.simulator import Scenario, Simulation
from pentimento.simulator.cache import CacheSettings
from pentimento.simulator.costs import ModelCosts, from_latencies, steady
from pentimento.simulator.device import DeviceSettings
from pentimento.simulator.scenario import Delays, SimulatedDevices, SimulatedModel
from pentimento.simulator.synthetic_log import synthetic_log
from pentimento.workloads import Content, Segment, SloClass, Workload, fluctuating, poisson

# Seconds of a run by batch size, A100 (DiffServe's artefact).
SD_TURBO = {1: 0.10, 2: 0.15, 4: 0.22, 8: 0.41, 16: 0.77, 32: 1.56}
SDXS = {1: 0.05, 2: 0.06, 4: 0.08, 8: 0.13, 16: 0.24, 32: 0.48}
SD15 = {1: 1.78, 2: 2.16, 4: 3.68, 8: 6.79, 16: 12.88, 32: 25.35}
SDXL_LIGHTNING = {1: 0.55, 2: 0.98, 4: 1.85, 8: 3.58, 16: 7.10}
SDXL = {1: 6.10, 2: 10.65, 4: 20.92, 8: 40.23, 16: 79.11}

# FID by the share that the light model answers, 0 to 1 in tenths (SD-Turbo with SD 1.5), the discriminator choosing.
FID = (18.55, 17.85, 17.33, 16.98, 16.79, 16.95, 17.26, 17.95, 18.86, 20.17, 22.77)

# Seconds an image, MI210 (MoDM's artefact).
MODM_SECONDS = {"large": 91.5, "sdxl": 16.5, "sana": 6.5}

# MoDM's k by similarity; its similarities are text to image under CLIP. The logs at hand have text to text alone, so
# the table is laid over those: from the least similarity that either paper reuses at.
IMAGE_RULES = SelectionRules(
    images=tuple(
        Threshold(similarity, k / 50) for similarity, k in ((0.65, 5), (0.75, 10), (0.85, 15), (0.90, 25), (0.95, 30))
    )
)


@dataclass(frozen=True)
class Cascade:
    """A pair of models with its SLO in seconds."""

    name: str
    light: dict[int, float]
    heavy: dict[int, float]
    slo_s: float


CASCADES = (
    Cascade("SD-Turbo, SD 1.5", SD_TURBO, SD15, 5.0),
    Cascade("SDXS, SD 1.5", SDXS, SD15, 5.0),
    Cascade("SDXL-Lightning, SDXL", SDXL_LIGHTNING, SDXL, 15.0),
)


def fid(report: Report, light_share: float) -> float:
    """By the published table where a discriminator chose; on the line between the ends where chance did."""
    if report.deferral_share > 0 or light_share in (0.0, 1.0):
        return float(np.interp(light_share, np.linspace(0, 1, len(FID)), FID))
    return FID[0] + light_share * (FID[-1] - FID[0])


def cascade_settings(cascade: Cascade, rate: float, peak: float, overprovision: float = 1.05) -> ServingSettings:
    return ServingSettings(
        heavy="heavy",
        light="light",
        slo_s=cascade.slo_s,
        discriminator_s=0.01,
        expected_per_s=rate,
        peak_per_s=peak,
        fixed_threshold=0.4,
        overprovision=overprovision,
        batch_sizes=tuple(sorted(cascade.light.keys() & cascade.heavy.keys())),
    )


def cascade_scenario(cascade: Cascade, policy: ServingPolicy, devices: int = 16) -> Scenario:
    """Whole requests batched, as the paper's workers do it; both models stay on an 80 GB device, so that switching
    costs nothing; no light picture stands in for a late heavy one."""
    return Scenario(
        name=policy.name,
        models=(
            SimulatedModel(from_latencies("light", 1, cascade.light, variation=0.02)),
            SimulatedModel(from_latencies("heavy", 50, cascade.heavy, variation=0.02)),
        ),
        devices=(SimulatedDevices(devices, "heavy"),),
        policy=policy,
        device_settings=DeviceSettings(steps=False, credit_batches=1),
        dataplane=DataplaneSettings(queue_limit=100_000, drop_late=policy.drops_late, fall_back=False),
        delays=Delays(score=steady(0.01)),
        default_model="heavy",
    )


def cascade_load(rates: Sequence[float], segment_s: float, slo_s: float, seed: int) -> Workload:
    """Poisson arrivals at each rate (a second) in turn."""
    content = Content(slo_classes=(SloClass("standard", slo_s),), steps=50)
    segments = tuple(Segment(segment_s, rate) for rate in rates)
    return fluctuating(np.random.default_rng(seed), content, segments)


def play(scenario: Scenario, workload: Workload, seed: int, warm_up_s: float = 0.0) -> tuple[Report, float]:
    """The report, and the share of its answers that the light model gave."""
    records = Simulation(scenario, workload, Random(seed)).run()
    answered = [record for record in records if record.outcome.answered and record.arrived_s >= warm_up_s]
    light = sum(record.model == "light" for record in answered) / len(answered) if answered else 0.0
    return make_report(scenario.name, records, {"kind": "simulated"}, warm_up_s=warm_up_s), light


def diffserve_with(settings: ServingSettings, overprovision: float) -> ServingPolicy:
    allocator = CascadeAllocator(replace(settings, overprovision=overprovision))
    return replace(SERVING_POLICIES["diffserve"](settings), allocator=allocator)


def mixture_scenario(name: str, devices: int, capacity: int, warm_count: int, expected_per_s: float) -> Scenario:
    """MoDM's setting: one request at a time, late requests painted all the same."""
    settings = ServingSettings(
        heavy="large", small=("sdxl", "sana"), batch_sizes=(1,), expected_per_s=expected_per_s, step_count=50
    )
    policy = SERVING_POLICIES[name](settings)
    models = tuple(SimulatedModel(_one_at_a_time(model, seconds)) for model, seconds in MODM_SECONDS.items())
    # NIRVANA stores five latents for a prompt.
    items = capacity * 5 if name == "nirvana-only" else capacity
    return Scenario(
        name=name,
        models=models,
        devices=(SimulatedDevices(devices, "large", max_batch=1),),
        policy=policy,
        device_settings=DeviceSettings(steps=False, credit_batches=1),
        dataplane=DataplaneSettings(queue_limit=1_000_000, drop_late=False),
        cache=CacheSettings(items, _rules(name), shared=True, warm_count=warm_count, retrieval_similarity=0.75),
        default_model="large",
        answers_late=True,
        control_period_s=180.0,
    )


def _rules(name: str) -> SelectionRules:
    return SelectionRules() if name == "nirvana-only" else IMAGE_RULES


def _one_at_a_time(model: str, seconds: float) -> ModelCosts:
    return from_latencies(model, 50, {1: seconds}, variation=0.02, load=steady(10.0))


def prompt_content(count: int, first_prompt: int, slo_s: float, seed: int) -> Content:
    """A made-up log with DiffusionDB's locality; its first prompts are there to warm the cache."""
    embeddings = synthetic_log(count, np.random.default_rng(seed))
    return Content(
        prompts=("",) * count,
        embeddings=embeddings,
        slo_classes=(SloClass("standard", slo_s),),
        steps=50,
        first_prompt=first_prompt,
        sources=("synthetic",),
    )


def prompt_load(per_minute: float, count: int, content: Content, seed: int) -> Workload:
    """About `count` Poisson arrivals."""
    rate = per_minute / 60.0
    return poisson(rate, count / rate, np.random.default_rng(seed), content)


def hit_share(report: Report) -> float:
    return 1.0 - report.starts.get(StartKind.NOISE, 0.0)
