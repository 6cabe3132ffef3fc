"""Build the models, fleets and loads of `paper_figures` from `paper_constants`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.papers.constants import (
    AZURE_SEGMENT_S,
    AZURE_SHAPE,
    CONTROL_PERIOD_S,
    DEMAND_WEIGHT,
    DISCRIMINATOR_S,
    MI210_SECONDS,
    MODM_CONTROL_PERIOD_S,
    OVERPROVISION,
    Cascade,
)
from lab.emulation.costs import ModelCosts, from_latencies
from lab.emulation.jobs import DeviceSettings
from lab.planners.ablations import StaticCascade
from lab.planners.registry import POLICIES
from lab.runs import RequestRecord
from lab.simulator import Scenario, Simulation
from lab.simulator.cache import CacheSettings
from lab.simulator.scenario import Delays, SimulatedDevices, SimulatedModel
from lab.simulator.synthetic_log import synthetic_log
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating, poisson
from pentimento.dataplane import DataplaneSettings
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.plan.cascade_problem import CascadeSolution
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.plan.settings import DeferralCurve, ModelQuality, ServingSettings
from pentimento.profiles.costs import steady

# MoDM's k by similarity (Fig. 5b). Its similarities are text to image under CLIP (0.25 to 0.30); this log has text to
# text under a sentence encoder. The least similarity is set so that the share of hits is MoDM's, 92.8 % (7.1); those of
# the larger k are NIRVANA's.
IMAGE_RULES = SelectionRules(
    images=tuple(
        Threshold(similarity, k / 50) for similarity, k in ((0.47, 5), (0.75, 10), (0.85, 15), (0.90, 25), (0.95, 30))
    )
)


@dataclass(frozen=True)
class DataPath:
    """Describe how requests reach workers, and the handling of requests that will be late."""

    name: str
    device: DeviceSettings
    even_split: bool = False
    drop_late: bool = False
    answers_late: bool = False


# DiffServe, 3.1: workers "serve queries routed to [them] and kept in [their] local queue"; only the artefact says which
# worker of a model gets a query: a random one. 4.1: queries are "preemptively dropped by the system when they are
# predicted to miss the deadline".
PAPER = DataPath(
    "as the paper has it", DeviceSettings(steps=False, credit_batches=1_000, drop_after=1.0), even_split=True
)
# The artefact drops requests predicted to take more than one and a half SLOs, and serves late ones.
ARTEFACT = DataPath(
    "as the artefact has it",
    DeviceSettings(steps=False, credit_batches=1_000, drop_after=1.5),
    even_split=True,
    answers_late=True,
)
# This suite's path: one queue a pool, and a worker is offered a request when it has a free slot.
OURS = DataPath("late binding", DeviceSettings(steps=False, credit_batches=1), drop_late=True)


@dataclass(frozen=True)
class Fared:
    """Store a cascade's violations and FID over the run, and their means over windows of `AZURE_SEGMENT_S`."""

    violations: float
    fid: float
    light_share: float
    violations_over_time: tuple[float, ...]
    fid_over_time: tuple[float, ...]


def fared(cascade: Cascade, records: Sequence[RequestRecord], *, chosen: bool) -> Fared:
    """Return violations and FID; FID is by each window's share of light images, averaged over windows as the artefact
    does.

    `chosen`: a discriminator chose, so that the published table applies; a random mix is on the line between its ends.
    """
    windows: dict[int, list[RequestRecord]] = {}
    for record in records:
        windows.setdefault(int(record.arrived_s // AZURE_SEGMENT_S), []).append(record)
    inside = [windows[index] for index in sorted(windows)]
    shares = [share for window in inside if (share := _light_share(window)) is not None]
    fids = tuple(_fid(cascade, share, chosen) for share in shares)
    return Fared(
        violations=_violations(records),
        fid=float(np.mean(fids)),
        light_share=_light_share(records) or 0.0,
        violations_over_time=tuple(_violations(window) for window in inside),
        fid_over_time=fids,
    )


def _violations(records: Sequence[RequestRecord]) -> float:
    return sum(record.outcome.violation for record in records) / len(records)


def _light_share(records: Sequence[RequestRecord]) -> float | None:
    answered = [record.model == "light" for record in records if record.outcome.answered]
    return sum(answered) / len(answered) if answered else None


def _fid(cascade: Cascade, light_share: float, chosen: bool) -> float:
    table = cascade.fid
    if chosen:
        return float(np.interp(light_share, np.linspace(0, 1, len(table)), table))
    return table[0] + light_share * (table[-1] - table[0])


def cascade_settings(cascade: Cascade, rate: float, overprovision: float = OVERPROVISION) -> ServingSettings:
    """Return the settings; `rate` is the demand that a running system knows when the trace begins."""
    return ServingSettings(
        heavy="heavy",
        light="light",
        slo_s=cascade.slo_s,
        deferral=curve(cascade),
        discriminator_s=DISCRIMINATOR_S,
        expected_per_s=rate,
        peak_per_s=cascade.peak,
        fixed_threshold=cascade.static.threshold,
        overprovision=overprovision,
        demand_weight=DEMAND_WEIGHT,
        batch_sizes=tuple(sorted(cascade.light.keys() & cascade.heavy.keys())),
    )


def curve(cascade: Cascade) -> DeferralCurve:
    return DeferralCurve(*(tuple(values) for values in zip(*cascade.deferral, strict=True)))


def cascade_policy(name: str, cascade: Cascade, settings: ServingSettings) -> ServingPolicy:
    """Return the policy; the static cascade has the artefact's allocation."""
    policy = POLICIES[name](settings)
    if name != "static-cascade":
        return policy
    static = cascade.static
    held = CascadeSolution(
        (static.light_count, static.heavy_count),
        (static.light_batch, static.heavy_batch),
        (1.0, settings.deferral.share(static.threshold)),
        (static.threshold,),
    )
    return replace(policy, allocator=StaticCascade(settings, held))


def cascade_scenario(cascade: Cascade, policy: ServingPolicy, devices: int = 16, path: DataPath = OURS) -> Scenario:
    """Return the scenario as in the paper.

    Workers batch whole requests; both models stay on an 80 GB device, so that switching is free; no light image
    replaces a late heavy one; predictions have no margin.
    """
    return Scenario(
        name=policy.name,
        models=(
            SimulatedModel(from_latencies("light", 1, dict(cascade.light), variation=0.02)),
            SimulatedModel(from_latencies("heavy", 50, dict(cascade.heavy), variation=0.02)),
        ),
        devices=(SimulatedDevices(devices, "heavy"),),
        policy=policy,
        device_settings=path.device,
        dataplane=DataplaneSettings(
            queue_limit=100_000,
            drop_late=path.drop_late and policy.drops_late,
            fall_back=False,
            prediction_margin=0.0,
        ),
        delays=Delays(score=steady(DISCRIMINATOR_S)),
        deferral=curve(cascade),
        control_period_s=CONTROL_PERIOD_S,
        default_model="heavy",
        answers_late=path.answers_late,
        even_split=path.even_split,
    )


def cascade_load(rates: Sequence[float], segment_s: float, slo_s: float, seed: int) -> Workload:
    """Return Poisson arrivals at each rate (per second) in sequence."""
    content = Content(slo_classes=(SloClass("standard", slo_s),), steps=50)
    segments = tuple(Segment(segment_s, rate) for rate in rates)
    return fluctuating(np.random.default_rng(seed), content, segments)


def azure_load(cascade: Cascade, seed: int) -> Workload:
    """Return the artefact's trace, scaled to the cascade."""
    rates = [cascade.low + share * (cascade.peak - cascade.low) for share in AZURE_SHAPE]
    return cascade_load(rates, AZURE_SEGMENT_S, cascade.slo_s, seed)


def run(scenario: Scenario, workload: Workload, seed: int) -> list[RequestRecord]:
    return Simulation(scenario, workload, Random(seed)).run()


def mixture_scenario(
    name: str,
    devices: int,
    capacity: int,
    warm_count: int,
    expected_per_s: float,
    seconds: Mapping[str, float] = MI210_SECONDS,
    small: tuple[str, ...] = ("sdxl", "sana"),
    qualities: tuple[ModelQuality, ...] = (),
) -> Scenario:
    """Return MoDM's setting: one request at a time, late requests served too."""
    settings = ServingSettings(
        heavy="large",
        small=small,
        batch_sizes=(1,),
        expected_per_s=expected_per_s,
        step_count=50,
        qualities=qualities,
    )
    policy = POLICIES[name](settings)
    # NIRVANA stores five latents per prompt
    items = capacity * 5 if name == "nirvana-only" else capacity
    rules = SelectionRules() if name == "nirvana-only" else IMAGE_RULES
    return Scenario(
        name=name,
        models=tuple(SimulatedModel(one_at_a_time(model, each)) for model, each in seconds.items()),
        devices=(SimulatedDevices(devices, "large", max_batch=1),),
        policy=policy,
        device_settings=DeviceSettings(steps=False, credit_batches=1),
        dataplane=DataplaneSettings(queue_limit=1_000_000, drop_late=False),
        cache=CacheSettings(items, rules, shared=True, warm_count=warm_count, retrieval_similarity=0.75),
        default_model="large",
        answers_late=True,
        control_period_s=MODM_CONTROL_PERIOD_S,
    )


def one_at_a_time(model: str, seconds: float) -> ModelCosts:
    """Return costs without batches. `load` is a guess: no paper says how long a switch takes."""
    return from_latencies(model, 50, {1: seconds}, variation=0.02, load=steady(10.0))


def prompt_content(count: int, first_prompt: int, slo_s: float, seed: int) -> Content:
    """Return a synthetic log with DiffusionDB's locality; its first prompts warm the cache."""
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
    """Return about `count` Poisson arrivals."""
    rate = per_minute / 60.0
    return poisson(rate, count / rate, np.random.default_rng(seed), content)


def hit_share(records: Sequence[RequestRecord]) -> float:
    return sum(record.start_step > 0 for record in records) / len(records)


Shape = tuple[float, ...]

SHAPES: Mapping[str, Shape] = {
    "azure": AZURE_SHAPE,
    "rise and fall": tuple(1 - abs(1 - 2 * index / 27) for index in range(28)),
    "steps": (0.0,) * 7 + (1.0,) * 7 + (0.0,) * 7 + (1.0,) * 7,
    "two peaks": tuple(max(0.0, float(np.sin(4 * np.pi * index / 27))) for index in range(28)),
    "sudden peak": (0.1,) * 10 + (1.0,) * 6 + (0.4,) * 12,
}
# the most different ones: a day, jumps that last, and a single peak
THREE: Mapping[str, Shape] = {name: SHAPES[name] for name in ("azure", "steps", "sudden peak")}


# router, by another scorer: AUROC of the prompt-aware discriminator and of DiffServe's; by another encoder
AUROC, AUROC_BY_ENCODER, AUROC_DIFFSERVE = 0.84, 0.70, 0.53
# router: the share of prompts on which the light image is as good as the heavy one; the standard deviation of the share
# of quality that the light image keeps
AS_GOOD, LIGHT_DEVIATION = 0.29, 0.19
# selector_profile, images by the rule of the mean, as selected: quality that hits keep, and its standard deviation
HIT_MEAN, HIT_DEVIATION = 0.935, 0.121


@cache
def correlation_of(auroc: float, as_good: float = AS_GOOD, points: int = 200) -> float:
    """Return the correlation of quality's and confidence's normal scores at which confidence separates the best
    `as_good` of the images from the others with that AUROC (0.5..1)."""
    quantiles = (np.arange(points) + 0.5) / points
    scores = np.array([NormalDist().inv_cdf(float(one)) for one in quantiles])
    split = NormalDist().inv_cdf(1.0 - as_good)
    differences = scores[scores > split][:, None] - scores[scores <= split][None, :]

    def found(correlation: float) -> float:
        spread = math.sqrt(2.0 * (1.0 - correlation**2))
        above = [0.5 * (1.0 + math.erf(correlation * d / spread / math.sqrt(2.0))) for d in differences.ravel()]
        return float(np.mean(above))

    low, high = 0.0, 0.9999
    if auroc <= 0.5:
        return 0.0
    for _ in range(24):
        middle = (low + high) / 2.0
        low, high = (middle, high) if found(middle) < auroc else (low, middle)
    return round(low, 4)


def own_deviation(spread: float, deviation: float = LIGHT_DEVIATION) -> float:
    """Return the standard deviation of single images for a quality that is uniform over `spread`."""
    return math.sqrt(max(deviation**2 - spread**2 / 12.0, 0.0))


@dataclass(frozen=True)
class Comparison:
    """Hold one comparison.

    `orders`: each ordering as a sentence, and whether it holds. `note`: the paper's result, and why ours differs.
    `beside`: the same orderings under other settings, without a target.
    """

    rows: Sequence[Mapping[str, Any]]
    orders: Mapping[str, bool]
    note: str
    beside: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return sum(self.orders.values()) / len(self.orders)

    def lines(self) -> list[str]:
        """Return the orderings that do not hold, with and without a target."""
        return [_told(self.orders), self.note, *(f"  {name}: {_told(orders)}" for name, orders in self.beside.items())]


def _told(orders: Mapping[str, bool]) -> str:
    failed = [sentence for sentence, holds in orders.items() if not holds]
    return "all orderings" if not failed else f"not: {'; '.join(failed)}"
