"""Measure how well a discriminator that reads the prompt predicts whether the light image is as good as the heavy one.

Both models of the zoo's cascade generate held-out prompts, with unseen combinations, from the same noise. *As good* is
a reader's score of both images. One attribute scorer labelled the training data of the shipped prompt head
(`tiny-router`); another scorer, trained separately, and an encoder labelled none of it.

- AUROC for "light as good as heavy", by each reader, of the prompt-aware discriminator and of other routers; the
  baseline is the number of requested objects, which needs no network
- the prompt-aware discriminator's margin over that baseline, over its prompt alone and over CLIPScore of light's image
- quality of the served images at equal device-seconds against DiffServe's confidence: both cascades run light on every
  prompt and heavy on the same share, so that their device-seconds differ by a score's cost, which is measured
- prompts that surely skip the light model, or the score, at the head's own threshold and at 50 % deferred; how often
  the score would have decided otherwise
- with --deferral only: the largest gap between the head's f(t) and the deferred share, sure prompts included, of new
  prompts of the kind that f(t) is of, with Kolmogorov's band, and of prompts with unseen combinations. Needs light
  images only, and no reader

Figures of images have a bootstrap over prompts. The three readers are trained on drawings only (`routing_data`).
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import kstwobign
from torchvision.models import efficientnet_v2_s

from benchmarks.routing_data import (
    BY_PROMPT,
    CLIP_SCORE,
    DIFFSERVE,
    HEAVY,
    LIGHT,
    PROMPT_AWARE,
    THING_COUNT,
    GeneratedPairs,
    Reading,
    WorkFolders,
    foreseen,
    held_out_pairs,
    random_confidences,
    readings,
    shipped_confidences,
    with_prompts,
)
from benchmarks.routing_estimates import figure_of, served_values
from lab.runs.intervals import ratio_of_medians
from lab.runs.measure import (
    Figure,
    Interval,
    Options,
    Target,
    at_least,
    at_most,
    counted,
    informative,
    interleave,
    measured,
    parse_options,
    publish,
    seconds_of,
    surely_above,
)
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.discriminators.calibration import aurocs, resampling_weights
from pentimento.diffusion.discriminators.head_fitting import with_deferral
from pentimento.domain.foresight import Verdict
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.evaluate.estimates import Array
from zoo.evaluate.examination import Examiner
from zoo.export.prompt_head import SCENES_SEED, shipped_pair
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

RATES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SHOWN_RATES = (0.2, 0.5, 0.8)
QUICK_COUNT = 256
FIRST_NEW = 100_000  # number of the first new scene, beyond all that trained or calibrated


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
    if rest["deferral"]:
        return deferral(options)
    folders = WorkFolders(rest["scorer"], rest["reader"], rest["encoder"])
    folders.check()
    pairs = held_out_pairs(rest["work"], QUICK_COUNT if options.quick else rest["prompts"])
    routed = routed_prompts(pairs, folders)
    figures = [
        *auroc_figures(routed),
        *margin_figures(routed),
        *gain_figures(routed),
        *sure_figures(pairs, routed),
    ]
    figures += [score_cost(pairs), *pass_times(pairs)]
    return publish(options, figures, notes={"prompts": len(pairs.prompts), "threads": rest["threads"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=2_560)
    parser.add_argument("--deferral", action="store_true", help="only the figures of f(t)")
    parser.add_argument("--new-prompts", type=int, default=4_800, help="without an unseen combination, for f(t)")
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
    ours, above = routed.confidences[PROMPT_AWARE], surely_above(0.0)
    for reader, read in routed.readings.items():
        for baseline, target in ((BY_PROMPT, above), (CLIP_SCORE, above), (THING_COUNT, informative())):
            theirs = aurocs(routed.confidences[baseline], read.as_good, routed.weights)
            value, interval = figure_of(aurocs(ours, read.as_good, routed.weights) - theirs)
            name = f"AUROC by {reader}: {PROMPT_AWARE} - {baseline}"
            yield Figure(name, round(value, 4), target, 0, interval)


def gain_figures(routed: RoutedPrompts) -> Iterator[Figure]:
    """Report the gain of the prompt-aware discriminator's clients over DiffServe's, by reader and deferral rate."""
    ours, theirs = routed.confidences[PROMPT_AWARE], routed.confidences[DIFFSERVE]
    for reader, read in routed.readings.items():
        for rate in SHOWN_RATES:
            name = f"quality above {DIFFSERVE} at equal device-seconds, {rate:.0%} deferred, by {reader}"
            yield gain(name, (ours, theirs), read, rate, routed.weights, surely_above(0.0))


def gain(
    name: str, confidences: tuple[Array, Array], read: Reading, rate: float, weights: Array, target: Target
) -> Figure:
    """Return the first router's mean value less the second's, at the same deferral rate."""
    ours, theirs = (served_values(each, read.light, read.heavy, rate, weights) for each in confidences)
    value, interval = figure_of(ours - theirs)
    return Figure(name, round(value, 5), target, len(read.light), interval)


def sure_figures(pairs: GeneratedPairs, routed: RoutedPrompts) -> Iterator[Figure]:
    """Report sure prompts at the head's own threshold and at 50 % deferred, with the errors: hard prompts that the
    score would have accepted, easy prompts that it would have deferred."""
    head = open_discriminator(WEIGHTS / "tiny-router").head
    assert head is not None
    embedded = list(Examiner(WEIGHTS, WEIGHTS).embed_texts(list(pairs.prompts.captions)).numpy())
    confidence = routed.confidences[PROMPT_AWARE]
    thresholds = {"its own threshold": head.record.threshold, "50% deferred": float(np.quantile(confidence, 0.5))}
    for name, at in thresholds.items():
        verdicts = [told.verdict for told in head.foresee(embedded, at)]
        for verdict, skips in ((Verdict.HARD, "skip the light model"), (Verdict.EASY, "skip the score")):
            sure = np.array([each is verdict for each in verdicts])
            wrong = sure & ((confidence > at) == (verdict is Verdict.HARD))
            yield counted(f"prompts that {skips}, {name}", int(sure.sum()), len(sure), informative("prompts"))
            told = f"of these, scored otherwise, {skips}, {name}"
            yield counted(told, int(wrong.sum()), max(int(sure.sum()), 1), informative("prompts"))


def deferral(options: Options) -> int:
    """Publish the figures of f(t), by default as router_deferral."""
    out = options.out.with_name("router_deferral.json") if options.out.name == "router.json" else options.out
    work, quick = options.rest["work"], options.quick
    count = QUICK_COUNT if quick else options.rest["new_prompts"]
    new = examination_prompts(count, first=FIRST_NEW, held_out=False, seed=SCENES_SEED)
    other = examination_prompts(QUICK_COUNT if quick else options.rest["prompts"])
    figures = [
        deferral_gap("new prompts", work, new, at_most(0.05)),
        deferral_gap("prompts with an unseen combination", work, other, informative()),
    ]
    return publish(replace(options, out=out), figures, notes={"threads": options.rest["threads"]})


def deferral_gap(name: str, work: Path, prompts: Prompts, target: Target) -> Figure:
    """Report the largest distance between the head's f(t) and the deferred share of the prompts' light images.

    The band is Kolmogorov's, which holds for any distribution: at 95 % a share of this number of prompts is nowhere
    farther from the share of all prompts."""
    discriminator = open_discriminator(WEIGHTS / "tiny-router")
    assert discriminator.head is not None
    captions, seeds = list(prompts.captions), [drawn[0] for drawn in prompts.seeds(1)]
    embedded = Examiner(WEIGHTS, WEIGHTS).embed_texts(captions)
    light = shipped_pair(LIGHT, HEAVY).light.generate(work, captions, seeds)
    confidences = torch.from_numpy(with_prompts(discriminator, light, embedded))
    found = with_deferral(discriminator.head.record, confidences, torch.from_numpy(foreseen(discriminator, embedded)))
    pairs = zip(discriminator.head.record.deferral, found.deferral, strict=True)
    largest = max(abs(told - deferred) for (_, told), (_, deferred) in pairs)
    band = float(kstwobign.isf(0.05)) / len(captions) ** 0.5
    interval = Interval(max(largest - band, 0.0), largest + band, "Kolmogorov's band")
    return Figure(f"f(t) of the head, largest gap, {name}", round(largest, 4), target, len(captions), interval)


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


def pass_times(pairs: GeneratedPairs, rounds: int = 20) -> Iterator[Figure]:
    """Time a forward pass of one image, alternating: the cascade's default, and DiffServe's network at its size, with
    random weights (10 ms on an A100 in the paper)."""
    network, theirs = open_discriminator(WEIGHTS / "tiny-router").network, efficientnet_v2_s(weights=None).eval()
    small, large = as_pixels(pairs.light[:1]), torch.zeros(1, 3, 224, 224)
    calls = {
        "the cascade's default at 64 px": lambda: network.logits(network.features(small)),
        "EfficientNet-V2-S at 224 px": lambda: theirs(large),
    }
    with torch.inference_mode():
        timed = interleave({name: timing(call) for name, call in calls.items()}, rounds + 1)
    for name, seconds in timed.items():
        yield measured(
            f"ms of a pass, {name}", [1e3 * each for each in seconds[1:]], statistics.median, informative("ms")
        )


def timing(call: Callable[[], object]) -> Callable[[int], float]:
    """Return a function of the round's number that times a call."""
    return lambda _: seconds_of(call)


if __name__ == "__main__":
    raise SystemExit(main())
