"""Compare a cascade's quality with its latency as the threshold moves, per router (DiffServe, Figures 1a and 7).

Both models of the zoo's cascade generate held-out prompts from the same noise. At each deferral rate, a client gets the
light image, or heavy's where the router is least confident in light's. Quality is the share of requested attributes
that a scorer sees, and a Fréchet distance from drawings of other scenes over the scorer's features. No router was
trained on these labels.

- the prompt-aware discriminator (`tiny-router`) and DiffServe's (`tiny-discriminator`: real is ground truth)
- a ResNet, a vision transformer and an EfficientNet, each trained here with ground truth and with heavy's images as
  real, as long as `tiny-router`'s network (`routing_networks`)
- a preference scorer as PickScore: its training prefers the image that shows more of the requested attributes, by the
  scorer that labelled `tiny-router`'s training (`--scorer`)
- CLIPScore of the light image; a random router, 20 seeds

The shipped discriminators have figures at each rate, the others the mean over the rates. `--prepare` only trains the
routers of `--routers`, after printing the minutes that each needs; it may be stopped, and continues from the last
checkpoint. A run with trained routers takes minutes.

Latency is an idle suite's: light, score, and heavy for deferred requests, as served, measured here alternately.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_distances import FrechetReference, Moments, moments
from benchmarks.router import QUICK_COUNT, RATES
from benchmarks.routing_data import (
    CLIP_SCORE,
    DIFFSERVE,
    HEAVY,
    LIGHT,
    PROMPT_AWARE,
    RANDOM,
    GeneratedPairs,
    Reading,
    check_reader,
    held_out_pairs,
    random_confidences,
    scored,
    shipped_confidences,
)
from benchmarks.routing_estimates import deferred_weights, figure_of, served_values
from benchmarks.routing_networks import (
    GROUND_TRUTH,
    HEAVY_REAL,
    PREFERENCE,
    ROUTERS,
    Preferences,
    SceneImages,
    ShownImages,
    router_name,
    trained_margins,
)
from lab.runs.measure import Figure, Target, informative, interleave, parse_options, publish, seconds_of, surely_above
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.discriminators.calibration import resampling_weights
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import examination_prompts
from zoo.evaluate.estimates import Array
from zoo.evaluate.examination import BATCH, Examiner
from zoo.export.prompt_head import COUNT, share_right, shipped_pair, training_prompts
from zoo.painting.pipeline import generate, load_pipeline
from zoo.painting.store import as_bytes
from zoo.registry import WEIGHTS, entry_of
from zoo.train.discriminator import render
from zoo.train.judge import AttributeReader
from zoo.train.loop import TrainingPlan, load_trained
from zoo.train.parts import WORK, check_trained
from zoo.train.prompt_network import PLAN

SEEDS = 20
DISTANCE_RESAMPLES = 200
Value = Callable[[str, float], Array]
"""By router and rate: the value over all prompts, then over each resample."""


@dataclass(frozen=True)
class FeaturePairs:
    """Store projected features (n, d) of both models' images, and of the drawings."""

    light: Array
    heavy: Array
    reference: FrechetReference


def main() -> int:
    options = parse_options("cascade_quality", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(rest["threads"])
    check_reader(rest["reader"])
    if PREFERENCE in rest["routers"]:
        check_trained(rest["scorer"], "judge", f"--work {rest['scorer']}")
    count = QUICK_COUNT if options.quick else rest["prompts"]
    pairs = held_out_pairs(rest["work"], count)
    plan = replace(PLAN, steps=2 if options.quick else rest["steps"])
    trained = dict(trained_routers(pairs, rest, plan))
    if rest["prepare"]:
        return 0
    confidences = shipped_routers(pairs) | trained
    read = scored(pairs, rest["reader"])
    features = feature_pairs(pairs, rest["reader"], count if options.quick else rest["drawings"])
    scores = scorer_values(confidences, read)
    distances = distance_values(confidences, features, 20 if options.quick else DISTANCE_RESAMPLES)
    figures = [
        *gains("share of attributes", (PROMPT_AWARE,), scores, sign=1.0),
        *gains("Fréchet distance", (PROMPT_AWARE, DIFFSERVE), distances, sign=-1.0),
        *mean_gains("share of attributes", rest["routers"], scores, sign=1.0),
        *mean_gains("Fréchet distance", rest["routers"], distances, sign=-1.0),
    ]
    costs = latencies(pairs, 1 if options.quick else 5)
    return publish(options, figures, notes={"prompts": count, "seconds": costs})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=2_560)
    parser.add_argument("--drawings", type=int, default=5_120, help="drawings of other scenes as the reference")
    parser.add_argument("--work", type=Path, default=WORK, help="folder that caches held-out images")
    parser.add_argument(
        "--training", type=Path, default=WORK, help="folder that caches training prompts' images and networks"
    )
    parser.add_argument(
        "--reader", type=Path, default=WORK / "reader", help="work folder of a separately trained attribute scorer"
    )
    parser.add_argument(
        "--routers", nargs="*", choices=ROUTERS, default=ROUTERS, help="to train, or trained before [all]"
    )
    parser.add_argument(
        "--scorer", type=Path, default=WORK, help="work folder of the scorer whose values are the preferences"
    )
    parser.add_argument("--prepare", action="store_true", help="train the routers only, and publish nothing")
    parser.add_argument("--steps", type=int, default=PLAN.steps, help="of each network's training")
    parser.add_argument("--threads", type=int, default=1)


def shipped_routers(pairs: GeneratedPairs) -> dict[str, Array]:
    """Return the confidence in each light image by shipped router; the random router's by seed."""
    shipped = shipped_confidences(pairs)
    found = {name: shipped[name] for name in (PROMPT_AWARE, DIFFSERVE, CLIP_SCORE)}
    return found | dict(random_confidences(len(pairs.prompts), SEEDS))


def trained_routers(pairs: GeneratedPairs, rest: Mapping[str, Any], plan: TrainingPlan) -> Iterator[tuple[str, Array]]:
    """Yield the confidence in each light image by trained router."""
    scenes, examiner = training_scenes(rest["training"]), Examiner(WEIGHTS, rest["scorer"])
    preferences = training_preferences(scenes, examiner) if PREFERENCE in rest["routers"] else None
    shown = ShownImages(pairs.light, examiner.embed_texts(list(pairs.prompts.captions)))
    yield from trained_margins(rest["routers"], scenes, preferences, shown, rest["training"] / "networks", plan)


def training_preferences(scenes: SceneImages, examiner: Examiner) -> Preferences:
    """Prefer the image of a training prompt that shows more of its requested attributes to the examiner's scorer."""
    prompts, _ = training_prompts(COUNT)
    light, heavy = (share_right(examiner.reader, images, prompts.asked) for images in (scenes.light, scenes.heavy))
    return Preferences(0.5 + 0.5 * torch.sign(light - heavy), examiner.embed_texts(list(prompts.captions)))


def training_scenes(work: Path) -> SceneImages:
    """Return the scenes that `tiny-router` was trained on, generating the images that the work folder lacks."""
    prompts, noise = training_prompts(COUNT)
    pair = shipped_pair(LIGHT, HEAVY)
    autoencoder = load_pipeline(pair.heavy.folder).vae
    rendered = torch.cat([as_bytes(render(autoencoder, part)) for part in prompts.drawn.split(BATCH)])
    light, heavy = (source.generate(work, list(prompts.captions), noise) for source in (pair.light, pair.heavy))
    return SceneImages(prompts.drawn, rendered, light, heavy)


def feature_pairs(pairs: GeneratedPairs, reader: Path, drawing_count: int) -> FeaturePairs:
    """Return the scorer's features; drawings are of scenes after the generated ones."""
    judge = load_trained(AttributeReader(), reader / "judge")
    drawn = examination_prompts(drawing_count, first=len(pairs.prompts)).drawn
    reference = FrechetReference(scorer_features(judge, drawn))
    light, heavy = (reference.project(scorer_features(judge, images)) for images in (pairs.light, pairs.heavy))
    return FeaturePairs(light, heavy, reference)


@torch.no_grad()
def scorer_features(judge: AttributeReader, images: Tensor) -> Array:
    """Return features (n, d) before the scorer's heads."""
    parts = [judge.body(as_pixels(part)) for part in images.split(BATCH)]
    return np.asarray(torch.cat(parts).double().numpy())


def scorer_values(confidences: Mapping[str, Array], read: Reading) -> Value:
    """Return the share of attributes that the scorer sees in the served images."""
    weights = resampling_weights(len(read.light))

    @cache
    def value(router: str, rate: float) -> Array:
        def drawn(confidence: Array) -> Array:
            return served_values(confidence, read.light, read.heavy, rate, weights)

        seeds = seeds_of(router, confidences)
        found: Array = np.mean([drawn(confidences[seed]) for seed in seeds], axis=0)
        return found

    return value


def distance_values(confidences: Mapping[str, Array], features: FeaturePairs, resamples: int) -> Value:
    """Return the served images' distance from drawings. A resample uses one seed of a router that has seeds."""
    weights = resampling_weights(len(features.light), resamples)

    def one(confidence: Array, rate: float, drawn: Array) -> float:
        return features.reference.distance(served_moments(confidence, features, rate, drawn))

    @cache
    def value(router: str, rate: float) -> Array:
        seeds = [confidences[seed] for seed in seeds_of(router, confidences)]
        whole = statistics.fmean(one(confidence, rate, weights[0]) for confidence in seeds)
        rest = (one(seeds[row % len(seeds)], rate, drawn) for row, drawn in enumerate(weights[1:]))
        return np.array([whole, *rest])

    return value


def served_moments(confidence: Array, features: FeaturePairs, rate: float, drawn: Array) -> Moments:
    """Return the moments of the served images if the least confident share is deferred to heavy."""
    order = np.argsort(confidence, kind="stable")
    deferred = np.empty_like(drawn)
    deferred[order] = deferred_weights(drawn[None, order], rate)[0]
    both = np.concatenate([features.heavy, features.light])
    return moments(both, np.concatenate([deferred, drawn - deferred]))


def seeds_of(router: str, confidences: Mapping[str, Array]) -> list[str]:
    """Return the names of a router's draws: its own name, or one per seed for the random router."""
    return [name for name in confidences if name.startswith(RANDOM)] if router == RANDOM else [router]


def gains(what: str, routers: Sequence[str], value: Value, sign: float) -> Iterator[Figure]:
    """Compare discriminators with the random router at each deferral rate, and the prompt-aware one, which has targets,
    with CLIPScore's router too."""
    for router in routers:
        is_default = router == PROMPT_AWARE
        target = surely_above(0.0) if is_default else informative()
        for other in (RANDOM, CLIP_SCORE) if is_default else (RANDOM,):
            for rate in RATES:
                name = f"{what}, {router} better than {other}, {rate:.0%} deferred"
                yield gain(name, sign * (value(router, rate) - value(other, rate)), target)


def mean_gains(what: str, trained: Sequence[str], value: Value, sign: float) -> Iterator[Figure]:
    """Compare every router with the random one by the mean over the rates, and then DiffServe's choice, an
    EfficientNet trained on ground truth, with the others of its Figure 7."""
    best = router_name("EfficientNet", GROUND_TRUTH)
    other_cases = (("ResNet", GROUND_TRUTH), ("ViT", GROUND_TRUTH), ("EfficientNet", HEAVY_REAL))
    others = [router_name(*case) for case in other_cases]
    pairs = [(router, RANDOM) for router in (PROMPT_AWARE, DIFFSERVE, CLIP_SCORE, *trained)]
    pairs += [(best, other) for other in others if {best, other} <= set(trained)]
    for router, other in pairs:
        differences = [sign * (value(router, rate) - value(other, rate)) for rate in RATES]
        name = f"{what}, mean over rates: {router} better than {other}"
        yield gain(name, np.mean(differences, axis=0), informative())


def gain(name: str, values: Array, target: Target) -> Figure:
    """Report a difference with its interval; its samples are the resamples."""
    found, interval = figure_of(values)
    return Figure(name, round(found, 5), target, len(values) - 1, interval)


def latencies(pairs: GeneratedPairs, rounds: int) -> dict[str, float]:
    """Return median seconds of one image by each model and of one score, as served, alternating."""
    network = open_discriminator(WEIGHTS / "tiny-router")
    pixels = as_pixels(pairs.light[:1]).numpy()[0]
    calls: dict[str, Callable[[], object]] = {
        name: generation(name, pairs.prompts.captions[0]) for name in (LIGHT, HEAVY)
    }
    calls["score"] = lambda: network.confidences([pixels])
    timed = interleave({name: timing(call) for name, call in calls.items()}, rounds + 1)
    return {name: round(statistics.median(samples[1:]), 4) for name, samples in timed.items()}


def timing(call: Callable[[], object]) -> Callable[[int], float]:
    return lambda number: seconds_of(call)


def generation(name: str, caption: str) -> Callable[[], object]:
    """Return a function that generates one image by a shipped model, as served."""
    entry, pipeline = entry_of(name, WEIGHTS), load_pipeline(WEIGHTS / name)
    steps, scale = int(entry["default_steps"]), float(entry["default_guidance_scale"])
    return lambda: generate(pipeline, [caption], [1], steps, scale, 1)


if __name__ == "__main__":
    raise SystemExit(main())
