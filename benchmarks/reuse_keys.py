"""Compare three keys for latents: CLIP text, a sentence encoder, the CLIP image of the donor.

    python -m benchmarks.reuse_keys [--prompts 280] [--log-seed 31]

The zoo's heavy model generates a log of prompts (`zoo.scene_log`) from scratch. Each key finds for every prompt its
nearest earlier one. The first half of the log makes the key's own table: for each K the lowest similarity at which
images resumed at K surely keep alpha of their CLIPScore. The table then chooses K for the second half, repeated prompts
included, so that the keys are compared at equal quality. Without a hit an image counts as the one from scratch.

NIRVANA, Table 4: hits 0.93 by CLIP text, 0.77 by BERT, 0.84 by the CLIP image; steps saved 0.23, 0.16, 0.18; CLIPScore
28.65, 28.94, 28.49.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.selector_profile import BATCH, LocalEncoder
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, informative, measured, parse_options, publish
from pentimento.diffusion.weights import quiet_loaders
from pentimento.policies.cache_selection import Threshold, allowed_steps
from pentimento.profiles.rules import ThresholdRule, lowest
from pentimento.supervisor.models import find_encoder
from services.embedder.model import open_model
from services.unet_worker.profiling.inputs import Vectors
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import ReuseOutcome, ReusePair, ReuseStudy, nearest_before
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

STEPS = (10, 25)
STEP_COUNT = 50
SENTENCE_ENCODER = "all-minilm-l6-v2"
QUICK_PROMPTS = 40
# The mean rule needs few samples; the lower bound is the rule of the suite's profiles.
RULES = {ThresholdRule.MEAN: 0.95, ThresholdRule.LOWER_BOUND: 0.9}
PAPER = {
    "CLIP text": "NIRVANA: hits 0.93, saved 0.23",
    "sentence encoder": "BERT in NIRVANA: hits 0.77, saved 0.16",
    "CLIP image": "NIRVANA: hits 0.84, saved 0.18",
}


@dataclass(frozen=True)
class ReuseKey:
    """Hold the unit vectors (prompts, width) that a key searches with, and its stored ones."""

    name: str
    queries: Vectors
    entries: Vectors


class ResumedImages:
    """Generate pairs from their donors' latents; images are cached, since keys share pairs."""

    def __init__(self, study: ReuseStudy) -> None:
        self.study = study
        self._found: dict[tuple[int, int, int], ReuseOutcome] = {}

    def prepare(self, pairs: Iterable[ReusePair], step: int) -> None:
        """Generate the pairs at K = `step` that are not there yet."""
        absent = {(pair.receiver, pair.donor, step): pair for pair in pairs}
        wanted = [pair for place, pair in absent.items() if place not in self._found]
        for outcome in self.study.reuse_latents(wanted, (step,)):
            self._found[outcome.pair.receiver, outcome.pair.donor, step] = outcome

    def quality(self, pair: ReusePair, step: int) -> float:
        """Return the CLIPScore of a pair's image."""
        return self._found[pair.receiver, pair.donor, step].quality

    def scratch_quality(self, row: int) -> float:
        """Return the CLIPScore of the image from scratch."""
        return float(self.study.images[row] @ self.study.texts[row])

    def table(self, pairs: Sequence[ReusePair], rule: ThresholdRule) -> tuple[Threshold, ...]:
        """Return the lowest similarity for each K by a rule; a K is allowed only where smaller ones are."""
        rows: list[Threshold] = []
        highest = -1.0
        for step in STEPS:
            self.prepare(pairs, step)
            samples = [self._sample(pair, step) for pair in pairs]
            similarity = lowest([outcome.sample() for outcome in samples], RULES[rule], rule)
            if similarity is None:
                break
            highest = max(highest, similarity)
            rows.append(Threshold(highest, step / STEP_COUNT))
        return tuple(rows)

    def _sample(self, pair: ReusePair, step: int) -> ReuseOutcome:
        return ReuseOutcome(pair, step, self.quality(pair, step), self.scratch_quality(pair.receiver))


def main() -> int:
    options = parse_options("reuse_keys", __doc__, add_options)
    torch.set_num_threads(1)
    quiet_loaders()
    count = QUICK_PROMPTS if options.quick else options.rest["prompts"]
    figures = list(figures_of_log(count, options.rest["log_seed"]))
    return publish(options, figures, notes={"prompts": count, "log_seed": options.rest["log_seed"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=280, help="of the log; half of them make the tables")
    parser.add_argument("--log-seed", type=int, default=31)


def figures_of_log(count: int, log_seed: int) -> Iterator[Figure]:
    """Yield every key's figures by both rules."""
    encoder = LocalEncoder(open_model(WEIGHTS / "tiny-clip"))
    sentences = LocalEncoder(open_model(find_encoder(SENTENCE_ENCODER).path))
    log = write_scene_log(count, clip_embedder(WEIGHTS / "tiny-clip"), np.random.default_rng(log_seed))
    large = study_model(WEIGHTS / "tiny-heavy", StudyRunSettings(max_batch=BATCH))
    images = ResumedImages(ReuseStudy(large, encoder, log.prompts, STEPS, first_seed=log_seed * 10_000))
    study, minilm = images.study, sentences.embed_texts(log.prompts)
    keys = (
        ReuseKey("CLIP text", study.texts, study.texts),
        ReuseKey("sentence encoder", minilm, minilm),
        ReuseKey("CLIP image", study.texts, study.images),
    )
    for key in keys:
        yield from figures_of_key(key, images)


def figures_of_key(key: ReuseKey, images: ResumedImages) -> Iterator[Figure]:
    """Yield the hits, steps saved and quality of the log's second half by the table of its first half."""
    prompts = images.study.prompts
    half = len(prompts) // 2
    profiled = [pair for pair in nearest_before(key.queries, key.entries, prompts, -1.0) if pair.receiver < half]
    # With distinct names every prompt counts as new.
    all_pairs = nearest_before(key.queries, key.entries, [str(row) for row in range(len(prompts))], -1.0)
    held_out = [pair for pair in all_pairs if pair.receiver >= half]
    for rule, alpha in RULES.items():
        table = images.table(profiled, rule)
        steps = [allowed_steps(pair.similarity, STEP_COUNT, table) for pair in held_out]
        for step in STEPS:
            images.prepare((pair for pair, own in zip(held_out, steps, strict=True) if own == step), step)
        scratch = [images.scratch_quality(pair.receiver) for pair in held_out]
        kept = [
            (images.quality(pair, step) if step else full, full)
            for pair, step, full in zip(held_out, steps, scratch, strict=True)
        ]
        name = f"{key.name}, {rule.value} of {alpha:g}"
        paper = PAPER[key.name]
        yield measured(f"{name}: hit rate ({paper})", [float(step > 0) for step in steps], mean, informative())
        yield measured(f"{name}: steps saved", [step / STEP_COUNT for step in steps], mean, informative())
        yield measured(f"{name}: CLIPScore ÷ that from scratch", kept, ratio_of_sums, informative())


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    raise SystemExit(main())
