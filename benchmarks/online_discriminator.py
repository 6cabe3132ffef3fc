"""Compare a discriminator that is trained on a cascade's own comparisons with one of as many labels made offline.

Both models of the zoo's cascade generate scenes from the same noise; a label is whether light's CLIPScore by the
suite's encoder reaches heavy's, as frontdoors compare images. The two sources of labels:

- *shadows*: DiffServe's discriminator defers half of the requests. Of every deferred image and of a few accepted ones
  both images are compared, in the proportion of the shipped shares (25 % and 2 %), which weights undo
- *offline*: as many prompts, drawn evenly

Each source trains a prompt head on `tiny-router`'s frozen network, as `pentimento discriminator train --network narrow
--start zoo/weights/tiny-router --steps 0` does, with 500 and 2,000 pairs; `--steps` trains the network too. AUROCs are
on other prompts; intervals have a bootstrap over these. Control: shadows without weights.

Not shown: labels by people; networks trained from the pairs.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.routing_data import DIFFSERVE, HEAVY, LIGHT, held_out_pairs, real_confidences
from benchmarks.routing_estimates import figure_of
from lab.runs.measure import Figure, at_least, informative, parse_options, publish
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.discriminators.calibration import Array, aurocs, resampling_weights
from pentimento.diffusion.discriminators.network_training import NetworkPlan, features_of
from services.discriminator.training.fitting import Fitted, begun, fit
from services.discriminator.training.pairs import FOLDS, PairTensors
from services.discriminator.training.settings import NetworkChoice
from zoo.evaluate.examination import BATCH, Examiner
from zoo.export.prompt_head import COUNT, shipped_pair, training_prompts
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

COUNTS = (500, 2_000)
QUICK_COUNTS = (120, 200)
HELD_COUNT, QUICK_COUNT = 2_560, 256
TESTED, QUICK_TESTED = 400, 100
# Shares of compared images, by the shipped settings of the frontdoor.
DEFERRED_SHARE, ACCEPTED_SHARE = 0.25, 0.02
DEFERRED = 0.5
SHADOWS, OFFLINE, UNWEIGHTED = "shadows", "offline labels", "shadows without weights"
CPU = torch.device("cpu")
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Requests:
    """Hold requests' images of both models, uint8 (n, 3, size, size), prompts' embeddings (n, width), and (n,) each:
    CLIPScores, and the confidences of DiffServe's discriminator in light's images."""

    light: Tensor
    heavy: Tensor
    prompts: Tensor
    light_scores: Tensor
    heavy_scores: Tensor
    confidences: Tensor


def main() -> int:
    options = parse_options("online_discriminator", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(rest["threads"])
    counts = QUICK_COUNTS if options.quick else COUNTS
    requests = requests_of(rest["work"], rest["training"], options.quick)
    count = len(requests.light)
    tested = QUICK_TESTED if options.quick else TESTED
    served, others = np.arange(count - tested), np.arange(count - tested, count)
    shadows, weights = shadowed(requests, served, ACCEPTED_SHARE / DEFERRED_SHARE)
    offline = np.random.default_rng(1).permutation(served)
    test = pairs_of(requests, others, np.ones(len(others)))
    figures: list[Figure] = []
    for size in counts:
        mine = pairs_of(requests, shadows[:size], weights[:size])
        theirs = pairs_of(requests, offline[:size], np.ones(size))
        sources = {SHADOWS: mine, OFFLINE: theirs}
        if size == counts[-1]:
            sources[UNWEIGHTED] = replace(mine, weights=torch.ones(size, dtype=torch.float64))
        trained = {name: scores(fitted(pairs, rest["steps"]), test) for name, pairs in sources.items()}
        figures += count_figures(size, trained, test)
    figures += baseline_figures(test)
    notes = {"requests": len(served), "shadows": len(shadows), "tested prompts": tested, "network steps": rest["steps"]}
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, default=WORK, help="folder that caches router's images")
    parser.add_argument("--training", type=Path, default=WORK, help="folder that caches the training's images")
    parser.add_argument("--steps", type=int, default=0, help="of each network's training; 0: the head alone")
    parser.add_argument("--threads", type=int, default=2)


def requests_of(work: Path, training: Path, quick: bool) -> Requests:
    """Return the prompts of `router` and of `tiny-router`'s training in a drawn order, generating the images that the
    folders lack."""
    held = held_out_pairs(work, QUICK_COUNT if quick else HELD_COUNT)
    learnt, seeds = training_prompts(QUICK_COUNT if quick else COUNT)
    pair = shipped_pair(LIGHT, HEAVY)
    made = [source.generate(training, list(learnt.captions), seeds) for source in (pair.light, pair.heavy)]
    light, heavy = torch.cat([held.light, made[0]]), torch.cat([held.heavy, made[1]])
    order = np.random.default_rng(2).permutation(len(light))
    captions = [*held.prompts.captions, *learnt.captions]
    captions = [captions[row] for row in order]
    chosen = torch.from_numpy(order)
    light, heavy = light[chosen], heavy[chosen]
    examiner = Examiner(WEIGHTS, WEIGHTS)
    embedded = torch.cat([examiner.embed_texts(captions[at : at + BATCH]) for at in range(0, len(captions), BATCH)])
    scored = [(examiner.embed_images(images) * embedded).sum(dim=1).double() for images in (light, heavy)]
    found = real_confidences(open_discriminator(WEIGHTS / "tiny-discriminator"), light)
    return Requests(light, heavy, embedded, scored[0], scored[1], torch.from_numpy(found))


def shadowed(requests: Requests, rows: Rows, accepted_share: float) -> tuple[Rows, Array]:
    """Return the requests that are compared, in their order, and their weights: every deferred one, and of the accepted
    ones that share."""
    confidences = requests.confidences.numpy()[rows]
    deferred = confidences <= np.quantile(confidences, DEFERRED)
    drawn = np.random.default_rng(0).random(len(rows)) < accepted_share
    chosen = deferred | drawn
    return rows[chosen], np.where(deferred, 1.0, 1.0 / accepted_share)[chosen]


def pairs_of(requests: Requests, rows: Rows, weights: Array) -> PairTensors:
    """Return pairs of some requests."""
    chosen = torch.from_numpy(rows)
    return PairTensors(
        requests.light[chosen],
        requests.heavy[chosen],
        requests.prompts[chosen],
        requests.light_scores[chosen],
        requests.heavy_scores[chosen],
        requests.confidences[chosen],
        torch.from_numpy(weights),
        torch.arange(len(rows)) % FOLDS,
    )


def fitted(pairs: PairTensors, steps: int) -> Fitted:
    """Train a discriminator as the command does, the narrow one."""
    torch.manual_seed(0)
    return fit(begun(NetworkChoice.NARROW, WEIGHTS / "tiny-router"), pairs, "", NetworkPlan(steps), CPU)


@torch.no_grad()
def scores(found: Fitted, test: PairTensors) -> tuple[Array, Array]:
    """Return the discriminator's logits of the tested light images, and those of their prompts alone."""
    features = features_of(found.network, test.light, CPU)
    together, alone = found.head(features, test.prompts), found.head.foresee(test.prompts)
    return together.double().numpy(), alone.double().numpy()


def count_figures(count: int, trained: dict[str, tuple[Array, Array]], test: PairTensors) -> Iterator[Figure]:
    """Report the AUROCs of the sources' discriminators, and the ratios."""
    as_good = (test.light_scores >= test.heavy_scores).numpy()
    weights = resampling_weights(len(as_good))
    found = {name: aurocs(together, as_good, weights) for name, (together, _) in trained.items()}
    alone = aurocs(trained[SHADOWS][1], as_good, weights)
    yield figure(
        f"AUROC after {count} shadows ÷ with as many labels made offline", found[SHADOWS] / found[OFFLINE], 0.95
    )
    beyond = (found[SHADOWS] - 0.5) / np.maximum(found[OFFLINE] - 0.5, 1e-6)
    yield figure(f"what is above chance, after {count} shadows ÷ with as many labels made offline", beyond)
    for name, values in found.items():
        yield figure(f"AUROC, {count} pairs, {name}", values)
    yield figure(f"AUROC, {count} pairs, {SHADOWS}, the prompt alone", alone)


def baseline_figures(test: PairTensors) -> Iterator[Figure]:
    """Report the AUROCs of routers that were not trained on pairs."""
    as_good = (test.light_scores >= test.heavy_scores).numpy()
    weights = resampling_weights(len(as_good))
    drawn = np.random.default_rng(0).random(len(as_good))
    routers = {
        "CLIPScore of the light image": test.light_scores.numpy(),
        DIFFSERVE: test.confidences.numpy(),
        "random": drawn,
    }
    for name, confidence in routers.items():
        yield figure(f"AUROC, {name}", aurocs(confidence, as_good, weights))
    yield figure("share of light images that are as good", (weights * as_good).sum(axis=1) / weights.sum(axis=1))


def figure(name: str, values: Array, least: float | None = None) -> Figure:
    """Return a figure of resampled values, with a target if `least` is given."""
    value, interval = figure_of(values)
    target = informative() if least is None else at_least(least)
    return Figure(name, round(value, 4), target, TESTED, interval)


if __name__ == "__main__":
    raise SystemExit(main())
