"""Measure hits that a small model refines, each by the profile of its (small, large) pair, on held-out prompts.

    python -m benchmarks.mixture_quality [--prompts 1000] [--log-seed 13]

The large model generates every prompt of a log (`zoo.scene_log`, another seed than the profiles') from scratch; its
images are the cache. Every image profile of the zoo then serves the log as the gateway does: a prompt's nearest image
before it, re-noised to the largest K that the table allows at that similarity, and refined by the profile's small
model. Quality is CLIPScore by the cache's encoder, hits divided by the large model's images of the same prompts and
seeds. The control is the small model from scratch on the same prompts. Repeats of a prompt are left out.

Paper (MoDM, section 7.2): 28.50 of 28.59, which is 0.997, with CLIPScore 0.95 as the profile's bound.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.selector_profile import BATCH, PROFILES, HeldOut, LocalEncoder
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_least, informative, measured, parse_options, publish, share
from pentimento.diffusion.denoising import NoiseStart
from pentimento.diffusion.weights import quiet_loaders
from pentimento.policies.cache_selection import allowed_steps
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import reuses_images, thresholds
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import ReuseOutcome, ReuseStudy
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

LARGE, ENCODER = "tiny-heavy", "tiny-clip"
PAPER = "MoDM: 0.997"
QUICK_PROMPTS, SCRATCH_PROMPTS = 40, 200


def main() -> int:
    options = parse_options("mixture_quality", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(1)
    quiet_loaders()
    count = QUICK_PROMPTS if options.quick else rest["prompts"]
    found = read_profiles([rest["profiles"]]).of(ProfileKind.REUSE)
    profiles = [profile for profile in found if reuses_images(profile) and profile.of.reference == LARGE]
    encoder = open_model(WEIGHTS / ENCODER)
    log = write_scene_log(count, clip_embedder(WEIGHTS / ENCODER), np.random.default_rng(rest["log_seed"]))
    large = study_model(WEIGHTS / LARGE, StudyRunSettings(max_batch=BATCH))
    study = ReuseStudy(large, LocalEncoder(encoder), log.prompts, (), first_seed=rest["log_seed"] * 10_000)
    figures = [figure for profile in profiles for figure in figures_of(profile, study)]
    figures += [from_scratch(name, study) for name in dict.fromkeys(profile.of.model for profile in profiles)]
    return publish(options, figures, notes={"prompts": count, "log_seed": rest["log_seed"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="file or directory of selector profiles")
    parser.add_argument("--prompts", type=int, default=1000, help="of the held-out log")
    parser.add_argument("--log-seed", type=int, default=13)


def figures_of(profile: Profile, study: ReuseStudy) -> Iterator[Figure]:
    """Yield the quality of the profile's hits, their share of all prompts, and the share that keeps alpha."""
    table, alpha, rule = thresholds(profile), profile.asked.alpha, profile.asked.rule.value
    small = study_model(WEIGHTS / profile.of.model, StudyRunSettings(max_batch=BATCH))
    least = min((row.min_similarity for row in table), default=1.0)
    held_out = HeldOut(profile, study, small, study.image_pairs(least))
    found = list(hits(held_out))
    name = f"{profile.of.model} for {LARGE}, {alpha:g} by {rule}"
    ratios = [(outcome.quality, outcome.scratch_quality) for outcome in found]
    if ratios:
        yield measured(f"{name}: quality of hits ÷ the large model's ({PAPER})", ratios, ratio_of_sums, at_least(alpha))
    yield share(f"{name}: hits, of all prompts", len(found), len(set(study.prompts)), informative())
    kept = [outcome.sample().keeps(alpha) for outcome in found]
    yield share(f"{name}: share of hits that keep {alpha:g}", sum(kept), len(kept), informative())


def hits(held_out: HeldOut) -> Iterator[ReuseOutcome]:
    """Yield the outcome of every pair that the table serves, at the largest K that its similarity allows."""
    table, step_count = thresholds(held_out.profile), held_out.profile.conditions.step_count
    by_step: dict[int, list[int]] = {}
    for number, pair in enumerate(held_out.pairs):
        if step := allowed_steps(pair.similarity, step_count, table):
            by_step.setdefault(step, []).append(number)
    for step, numbers in sorted(by_step.items()):
        yield from held_out.outcomes([held_out.pairs[number] for number in numbers], step)


def from_scratch(name: str, study: ReuseStudy) -> Figure:
    """Return the small model's quality from noise, divided by the large model's."""
    small = study_model(WEIGHTS / name, StudyRunSettings(max_batch=BATCH))
    rows = list({prompt: row for row, prompt in enumerate(study.prompts)}.values())[:SCRATCH_PROMPTS]
    requests = [small.request(study.prompts[row], study.first_seed + row, NoiseStart()) for row in rows]
    images = study.encoder.embed_images([image.png for image in small.generator.generate(requests)])
    ratios = [
        (float(image @ study.texts[row]), float(study.images[row] @ study.texts[row]))
        for row, image in zip(rows, images, strict=True)
    ]
    return measured(f"{name} from scratch: quality ÷ the large model's", ratios, ratio_of_sums, informative())


if __name__ == "__main__":
    raise SystemExit(main())
