"""Measure how well a discriminator that reads the prompt predicts whether the light image is as good as the heavy one.

Both models of the zoo's cascade generate held-out prompts, with unseen combinations, from the same noise. *As good* is
a reader's score of both images. One attribute scorer labelled the training data of the shipped prompt head
(`tiny-router`); another scorer, trained separately, and an encoder labelled none of it.

- AUROC for "light as good as heavy", by each reader, of the prompt-aware discriminator and of other routers; the
  baseline is the number of requested objects, which needs no network
- the prompt-aware discriminator's margin over that baseline, and over CLIPScore of the light image
- quality of the served images at equal device-seconds against DiffServe's confidence: both cascades run light on every
  prompt and heavy on the same share, so that their device-seconds differ by a score's cost, which is measured
- prompts that would skip the light model (`skip-light-below`), and how often that would be wrong

Figures of images have a bootstrap over prompts. The three readers are trained on drawings only (`routing_data`).
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.routing_data import (
    BY_PROMPT,
    CLIP_SCORE,
    DIFFSERVE,
    PROMPT_AWARE,
    THING_COUNT,
    GeneratedPairs,
    Reading,
    WorkFolders,
    held_out_pairs,
    random_confidences,
    readings,
    shipped_confidences,
)
from benchmarks.routing_estimates import aurocs, figure_of, resampling_weights, served_values
from lab.runs.intervals import ratio_of_medians
from lab.runs.measure import (
    Figure,
    Target,
    at_least,
    counted,
    informative,
    measured,
    parse_options,
    publish,
    seconds_of,
    surely_above,
)
from pentimento.diffusion.discriminators import open_discriminator
from zoo.drawing.dataset import as_pixels
from zoo.evaluate.estimates import Array
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

RATES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
QUICK_COUNT = 256


@dataclass(frozen=True)
class RoutedPrompts:
    """Hold the readers' scores of the images, and the routers' of the light ones."""

    readings: Mapping[str, Reading]
    confidences: Mapping[str, Array]
    weights: Array


def main() -> int:
    options = parse_options("router", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(rest["threads"])
    folders = WorkFolders(rest["scorer"], rest["reader"], rest["encoder"])
    folders.check()
    pairs = held_out_pairs(rest["work"], QUICK_COUNT if options.quick else rest["prompts"])
    routed = routed_prompts(pairs, folders)
    figures = [
        *auroc_figures(routed),
        *margin_figures(routed),
        *gain_figures(routed),
        *left_out_figures(routed),
        deferral_gap(routed),
    ]
    figures.append(score_cost(pairs))
    return publish(options, figures, notes={"prompts": len(pairs.prompts), "threads": rest["threads"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=2_560)
    parser.add_argument("--work", type=Path, default=WORK, help="folder that caches generated images")
    parser.add_argument(
        "--scorer", type=Path, default=WORK, help="work folder of the scorer that labelled the training"
    )
    parser.add_argument(
        "--reader", type=Path, default=WORK / "reader", help="work folder of a separately trained attribute scorer"
    )
    parser.add_argument("--encoder", type=Path, default=WORK / "others", help="work folder of another dual encoder")
    parser.add_argument("--threads", type=int, default=1)


def routed_prompts(pairs: GeneratedPairs, folders: WorkFolders) -> RoutedPrompts:
    """Return all inputs of the figures."""
    count = len(pairs.prompts)
    confidences = shipped_confidences(pairs) | dict(random_confidences(count, 1))
    return RoutedPrompts(readings(pairs, folders), confidences, resampling_weights(count))


def auroc_figures(routed: RoutedPrompts) -> Iterator[Figure]:
    """Report AUROCs; the prompt-aware discriminator has the target by every reader."""
    for reader, read in routed.readings.items():
        for router, confidence in routed.confidences.items():
            value, interval = figure_of(aurocs(confidence, read.as_good, routed.weights))
            target = at_least(0.8) if router == PROMPT_AWARE else informative()
            yield Figure(f"AUROC by {reader}: {router}", round(value, 4), target, len(confidence), interval)


def margin_figures(routed: RoutedPrompts) -> Iterator[Figure]:
    """Report the prompt-aware discriminator's margin over free baselines, on the same prompts."""
    ours = routed.confidences[PROMPT_AWARE]
    for reader, read in routed.readings.items():
        for baseline in (THING_COUNT, CLIP_SCORE):
            theirs = aurocs(routed.confidences[baseline], read.as_good, routed.weights)
            value, interval = figure_of(aurocs(ours, read.as_good, routed.weights) - theirs)
            name = f"AUROC by {reader}: {PROMPT_AWARE} - {baseline}"
            yield Figure(name, round(value, 4), informative(), 0, interval)


def gain_figures(routed: RoutedPrompts) -> Iterator[Figure]:
    """Report the gain of the prompt-aware discriminator's clients over DiffServe's, by reader and deferral rate."""
    ours, theirs = routed.confidences[PROMPT_AWARE], routed.confidences[DIFFSERVE]
    for reader, read in routed.readings.items():
        for rate in RATES:
            name = f"quality above {DIFFSERVE} at equal device-seconds, {rate:.0%} deferred, by {reader}"
            yield gain(name, (ours, theirs), read, rate, routed.weights, surely_above(0.0))


def gain(
    name: str, confidences: tuple[Array, Array], read: Reading, rate: float, weights: Array, target: Target
) -> Figure:
    """Return the first router's mean value less the second's, at the same deferral rate."""
    ours, theirs = (served_values(each, read.light, read.heavy, rate, weights) for each in confidences)
    value, interval = figure_of(ours - theirs)
    return Figure(name, round(value, 5), target, len(read.light), interval)


def left_out_figures(routed: RoutedPrompts) -> Iterator[Figure]:
    """Report prompts below the head's bound for certainly hard ones."""
    head = open_discriminator(WEIGHTS / "tiny-router").head
    assert head is not None
    foreseen = routed.confidences[BY_PROMPT]
    hard = np.flatnonzero(foreseen < head.record.hard_below)
    yield counted("prompts that skip the light model", len(hard), len(foreseen), informative("prompts"))
    for reader, read in routed.readings.items():
        wrong = read.as_good[hard]
        name = f"of these, light would have been as good, by {reader}"
        yield counted(name, int(wrong.sum()), max(len(hard), 1), informative("prompts"))


def deferral_gap(routed: RoutedPrompts) -> Figure:
    """Report the distance of the head's f(t) from the shares deferred here."""
    head = open_discriminator(WEIGHTS / "tiny-router").head
    assert head is not None
    confidence = routed.confidences[PROMPT_AWARE]
    samples = [(share, round(float((confidence <= at).mean()), 4)) for at, share in head.record.deferral]
    largest = max(abs(told - found) for told, found in samples)
    return Figure("f(t) of the head, largest gap to held-out prompts", round(largest, 4), informative(), len(samples))


def score_cost(pairs: GeneratedPairs, rounds: int = 30) -> Figure:
    """Time a score by image and prompt ÷ by the image only, one image at a time, alternating."""
    network = open_discriminator(WEIGHTS / "tiny-router")
    assert network.head is not None
    prompt = np.full(network.head.record.embedding_width, 0.1, np.float32)
    pixels = [as_pixels(image[None]).numpy()[0] for image in pairs.light[: rounds + 1]]
    alone, reading = network.confidences, network.confidences_with
    pairs_of_seconds = [
        (seconds_of(lambda: reading([each], [prompt])), seconds_of(lambda: alone([each])))  # noqa: B023 - called here
        for each in pixels
    ]
    return measured(
        "seconds of a score with the prompt ÷ without", pairs_of_seconds[1:], ratio_of_medians, informative()
    )


if __name__ == "__main__":
    raise SystemExit(main())
