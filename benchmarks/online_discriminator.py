"""Compare a discriminator that is trained on a cascade's own comparisons with one of as many labels made offline.

Both models of the zoo's cascade generate scenes from the same noise; a label is whether light's CLIPScore by the
suite's encoder reaches heavy's, as frontdoors compare images. The two sources of labels:

- *shadows*: DiffServe's discriminator defers half of the requests. Of every deferred image and of a few accepted ones
  both images are compared, in the proportion of the shipped shares (25 % and 2 %), which weights undo
- *offline*: as many prompts, drawn evenly

Each source trains the command's narrow network and prompt head (`services.discriminator.training`), with the newest 500
and 2,000 pairs. AUROCs are on other prompts; intervals have a bootstrap over these. Control: shadows without weights.

Not shown: labels by people; EfficientNet-V2-S, which a GPU trains by the same command.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.routing_data import DIFFSERVE, HEAVY, LIGHT, real_confidences
from benchmarks.routing_estimates import figure_of
from lab.runs.measure import Figure, at_least, informative, parse_options, publish
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.discriminators.calibration import Array, aurocs, resampling_weights
from pentimento.diffusion.discriminators.network_training import NetworkPlan, features_of
from services.discriminator.training.fitting import Fitted, begun, fit
from services.discriminator.training.pairs import FOLDS, PairTensors
from services.discriminator.training.settings import NetworkChoice
from zoo.drawing.prompts import examination_prompts
from zoo.evaluate.examination import Examiner
from zoo.export.prompt_head import shipped_pair
from zoo.registry import WEIGHTS
from zoo.train.parts import WORK

COUNTS = (500, 2_000)
QUICK_COUNTS = (120, 240)
TESTED, QUICK_TESTED = 800, 200
# Shares of compared images, by the shipped settings of the frontdoor.
DEFERRED_SHARE, ACCEPTED_SHARE = 0.25, 0.02
DEFERRED = 0.5
SCENES_SEED, FIRST_NOISE = 31, 1 << 41
SHADOWS, OFFLINE, UNWEIGHTED = "shadows", "offline labels", "shadows without weights"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Requests:
    """Hold requests: captions, seeds, light images, uint8 (n, 3, size, size), prompts' embeddings (n, width), and (n,)
    each: light's CLIPScores, and the confidences of DiffServe's discriminator."""

    captions: list[str]
    seeds: list[int]
    light: Tensor
    prompts: Tensor
    light_scores: Tensor
    confidences: Tensor


def main() -> int:
    options = parse_options("online_discriminator", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(rest["threads"])
    counts, tested = (QUICK_COUNTS, QUICK_TESTED) if options.quick else (COUNTS, TESTED)
    steps = 20 if options.quick else rest["steps"]
    sampled = ACCEPTED_SHARE / DEFERRED_SHARE
    needed = round(counts[-1] / (DEFERRED + (1.0 - DEFERRED) * sampled) * 1.05)
    requests = requests_of(rest["work"], needed + tested)
    served, others = np.arange(needed), np.arange(needed, needed + tested)
    shadows, weights = shadowed(requests, served, sampled)
    offline = np.random.default_rng(1).permutation(served)
    test = pairs_of(rest["work"], requests, others, np.ones(len(others)))
    figures: list[Figure] = []
    for count in counts:
        mine = pairs_of(rest["work"], requests, shadows[:count], weights[:count])
        theirs = pairs_of(rest["work"], requests, offline[:count], np.ones(count))
        sources = {SHADOWS: mine, OFFLINE: theirs}
        if count == counts[-1]:
            sources[UNWEIGHTED] = replace(mine, weights=torch.ones(count, dtype=torch.float64))
        trained = {name: scores(fitted(pairs, steps), test) for name, pairs in sources.items()}
        figures += count_figures(count, trained, test)
    figures += baseline_figures(test)
    notes = {"requests": needed, "tested prompts": tested, "network steps": steps, "threads": rest["threads"]}
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, default=WORK, help="folder that caches generated images")
    parser.add_argument("--steps", type=int, default=250, help="of each network's training")
    parser.add_argument("--threads", type=int, default=2)


def requests_of(work: Path, count: int) -> Requests:
    """Return requests for scenes without an unseen combination, generating the light images that the folder lacks."""
    prompts = examination_prompts(count, held_out=False, seed=SCENES_SEED)
    captions, seeds = list(prompts.captions), [FIRST_NOISE + row for row in range(count)]
    light = shipped_pair(LIGHT, HEAVY).light.generate(work, captions, seeds)
    examiner = Examiner(WEIGHTS, WEIGHTS)
    embedded = examiner.embed_texts(captions)
    found = real_confidences(open_discriminator(WEIGHTS / "tiny-discriminator"), light)
    scored = examiner.clip_scores(light, captions).double()
    return Requests(captions, seeds, light, embedded, scored, torch.from_numpy(found))


def shadowed(requests: Requests, rows: Array, accepted_share: float) -> tuple[Array, Array]:
    """Return the requests that are compared, in their order, and their weights: every deferred one, and of the accepted
    ones that share."""
    confidences = requests.confidences.numpy()[rows]
    deferred = confidences <= np.quantile(confidences, DEFERRED)
    drawn = np.random.default_rng(0).random(len(rows)) < accepted_share
    chosen = deferred | drawn
    return rows[chosen], np.where(deferred, 1.0, 1.0 / accepted_share)[chosen]


def pairs_of(work: Path, requests: Requests, rows: Array, weights: Array) -> PairTensors:
    """Return pairs of some requests, generating the heavy images that the folder lacks."""
    captions, seeds = [requests.captions[row] for row in rows], [requests.seeds[row] for row in rows]
    heavy = shipped_pair(LIGHT, HEAVY).heavy.generate(work, captions, seeds)
    chosen = torch.from_numpy(rows)
    return PairTensors(
        requests.light[chosen],
        heavy,
        requests.prompts[chosen],
        requests.light_scores[chosen],
        Examiner(WEIGHTS, WEIGHTS).clip_scores(heavy, captions).double(),
        requests.confidences[chosen],
        torch.from_numpy(weights),
        torch.arange(len(rows)) % FOLDS,
    )


def fitted(pairs: PairTensors, steps: int) -> Fitted:
    """Train a discriminator as the command does, the narrow one."""
    torch.manual_seed(0)
    return fit(begun(NetworkChoice.NARROW, None), pairs, "", NetworkPlan(steps), CPU)


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
