"""Measure whether hits keep their quality: the zoo's selector profiles on a log of prompts that did not make them.

    python -m benchmarks.selector_profile [--profiles DIR] [--prompts 600] [--log-seed 12]

The large model generates every prompt of the log (`zoo.scene_log`, another seed than the profiles') from scratch. For
each K of a profile's table, the pairs from its threshold on are generated with K of N steps skipped, and the number
that keeps alpha is counted: CLIPScore against that of the large model from scratch with the same seed, as in the
papers. The target is for the rule of the lower bound: the whole interval above 0.95. The result also has the other
rules, and the quality that the large model keeps from one seed to another. "As selected" is a gateway's choice: each
pair at the largest K that its similarity allows, with the saved share of all steps. Repeats of a prompt, which any
table serves best, are skipped.

Papers: NIRVANA's hits keep 0.951 of CLIPScore (28.81 of 30.28), MoDM's 0.997 (28.50 of 28.59); neither counts single
images.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, Target, informative, measured, parse_options, publish, share, surely_above
from pentimento.diffusion.denoising import NoiseStart
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.errors import NotFound
from pentimento.policies.cache_selection import Threshold, Thresholds, allowed_steps
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind, ReuseKind
from pentimento.profiles.kinds import profile_name, reuses_images, start_of, thresholds
from pentimento.profiles.rules import ThresholdRule
from services.embedder.model import EmbeddingModel, open_model
from services.unet_worker.profiling.inputs import Vectors
from services.unet_worker.profiling.reuse import TABLE_STEPS, captured_steps, study_model
from services.unet_worker.profiling.reuse_study import ReuseOutcome, ReusePair, ReuseStudy, StudyModel
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

PROFILES = WEIGHTS.parent / "selector_profiles"
REQUIRED = 0.95
BATCH = 16
OTHER_SEED = 1_000_000
QUICK_PROMPTS = 40
PAPER = {ReuseKind.LATENTS: "NIRVANA: 0.951", ReuseKind.IMAGES: "MoDM: 0.997"}


def shipped_table(kind: ReuseKind, model: str) -> Thresholds:
    """Return the table that `up` uses for the model: of its profile for single images, not for means."""
    profiles = read_profiles([PROFILES]).of(ProfileKind.REUSE)
    ours = (one for one in profiles if start_of(one) is kind and one.of.model == model)
    (profile,) = (one for one in ours if one.asked.rule is not ThresholdRule.MEAN)
    return thresholds(profile)


@dataclass(frozen=True)
class LocalEncoder:
    """Run the embedder's encoder in this process."""

    model: EmbeddingModel

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors (texts, dimensions)."""
        parts = (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))
        return _vectors([vector for part in parts for vector in self.model.embed_texts(part)])

    @torch.inference_mode()
    def embed_images(self, pictures: Sequence[bytes]) -> Vectors:
        """Return unit vectors (images, dimensions)."""
        pixels = [self.model.image_side().prepare(data, "image") for data in pictures]
        parts = (pixels[start : start + BATCH] for start in range(0, len(pixels), BATCH))
        return _vectors([vector for part in parts for vector in self.model.embed_images(part)])


def _vectors(rows: Sequence[bytes]) -> Vectors:
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


@dataclass
class HeldOut:
    """Apply a profile to the held-out log. Generated images are cached, since rules share pairs."""

    profile: Profile
    study: ReuseStudy
    model: StudyModel
    pairs: tuple[ReusePair, ...]

    def __post_init__(self) -> None:
        self._generated: dict[tuple[ReusePair, int], ReuseOutcome] = {}

    def outcomes(self, pairs: Sequence[ReusePair], step: int) -> list[ReuseOutcome]:
        """Return the pairs' outcomes with K of N steps skipped."""
        absent = [pair for pair in pairs if (pair, step) not in self._generated]
        for outcome in self._generate(absent, step):
            self._generated[outcome.pair, step] = replace(outcome, skipped_steps=step)
        return [self._generated[pair, step] for pair in pairs]

    def _generate(self, pairs: Sequence[ReusePair], step: int) -> Iterator[ReuseOutcome]:
        if not pairs:
            return iter(())
        if not reuses_images(self.profile):
            return self.study.reuse_latents(pairs, (captured_steps(self.model.step_count)[step],))
        return self.study.reuse_images(self.model, pairs, (step,), TABLE_STEPS)


def main() -> int:
    options = parse_options("selector_profile", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(1)
    quiet_loaders()
    profiles = read_profiles([rest["profiles"]]).of(ProfileKind.REUSE)
    if not profiles:
        raise NotFound("FILE_MISSING", f"{rest['profiles']}: holds no selector profile")
    count = QUICK_PROMPTS if options.quick else rest["prompts"]
    figures: list[Figure] = []
    for reference in dict.fromkeys(profile.of.reference for profile in profiles):
        of_reference = [profile for profile in profiles if profile.of.reference == reference]
        figures += figures_of_reference(reference, of_reference, count, rest["log_seed"])
    return publish(options, figures, notes={"prompts": count, "log_seed": rest["log_seed"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="file or directory of selector profiles")
    parser.add_argument("--prompts", type=int, default=600, help="of the held-out log")
    parser.add_argument("--log-seed", type=int, default=12)


def figures_of_reference(reference: str, profiles: Sequence[Profile], count: int, log_seed: int) -> Iterator[Figure]:
    """Yield the figures of all profiles against one large model, which generates the log once for them."""
    encoder_folder = WEIGHTS / profiles[0].of.encoder
    encoder = open_model(encoder_folder)
    for profile in profiles:
        assert profile.of.encoder_digest == encoder.digest, f"{profile_name(profile)}: made for another encoder"
    log = write_scene_log(count, clip_embedder(encoder_folder), np.random.default_rng(log_seed))
    large = study_model(WEIGHTS / reference, StudyRunSettings(max_batch=BATCH))
    kept = tuple(captured_steps(large.step_count).values())
    study = ReuseStudy(large, LocalEncoder(encoder), log.prompts, kept, first_seed=log_seed * 10_000)
    for profile in profiles:
        held_out = held_out_of(profile, study, large)
        if not reuses_images(profile):
            yield between_seeds(held_out)
        for rule in ThresholdRule:
            yield from figures_of_rule(held_out, rule)


def held_out_of(profile: Profile, study: ReuseStudy, large: StudyModel) -> HeldOut:
    """Return the profile with the log's pairs that any of its tables would serve."""
    tables = [thresholds(profile, rule) for rule in ThresholdRule]
    least = min((row.min_similarity for table in tables for row in table), default=1.0)
    if not reuses_images(profile):
        return HeldOut(profile, study, large, study.latent_pairs(least))
    small = study_model(WEIGHTS / profile.of.model, StudyRunSettings(max_batch=BATCH))
    return HeldOut(profile, study, small, study.image_pairs(least))


def between_seeds(held_out: HeldOut) -> Figure:
    """Return how many of the pairs' prompts keep alpha if generated from scratch with another seed."""
    study, alpha = held_out.study, held_out.profile.asked.alpha
    rows = [pair.receiver for pair in held_out.pairs]
    requests = [
        study.large.request(study.prompts[row], study.first_seed + OTHER_SEED + row, NoiseStart()) for row in rows
    ]
    pictures = [picture.png for picture in study.large.generator.generate(requests)]
    images = study.encoder.embed_images(pictures) if pictures else np.zeros((0, 1), np.float32)
    kept = [
        bool(image @ study.texts[row] >= alpha * float(study.images[row] @ study.texts[row]))
        for row, image in zip(rows, images, strict=True)
    ]
    return kept_share(
        f"{held_out.profile.of.model} from scratch with another seed keeps {alpha:g}", kept, informative()
    )


def figures_of_rule(held_out: HeldOut, rule: ThresholdRule) -> Iterator[Figure]:
    """Yield a figure per threshold, and the served choice with the whole table."""
    profile = held_out.profile
    table, what = thresholds(profile, rule), f"{start_of(profile).value} of {profile.of.model}, {rule.value}"
    step_count, alpha = profile.conditions.step_count, profile.asked.alpha
    target = surely_above(REQUIRED) if rule is ThresholdRule.LOWER_BOUND else informative()
    if not table:
        yield Figure(f"{what}: no similarity is enough for any K", None, target)
        return
    for row in table:
        step = round(row.saved_share * step_count)
        pairs = [pair for pair in held_out.pairs if pair.similarity >= row.min_similarity]
        found = held_out.outcomes(pairs, step)
        name = f"{what}, {step}/{step_count} from {row.min_similarity:.4f} on: share that keeps {alpha:g}"
        yield kept_share(name, [outcome.sample().keeps(alpha) for outcome in found], target)
    yield from as_selected(held_out, table, what)


def as_selected(held_out: HeldOut, table: Sequence[Threshold], what: str) -> Iterator[Figure]:
    """Yield the served share that keeps alpha, the mean quality kept, and the saved share of steps over all prompts
    that are no repeats."""
    profile = held_out.profile
    step_count, alpha = profile.conditions.step_count, profile.asked.alpha
    found = []
    for pair in held_out.pairs:
        if step := allowed_steps(pair.similarity, step_count, tuple(table)):
            found += held_out.outcomes([pair], step)
    name = f"{what}, as selected"
    kept = [outcome.sample().keeps(alpha) for outcome in found]
    yield kept_share(f"{name}: share that keeps {alpha:g}", kept, informative())
    if not found:
        return
    ratios = [(outcome.quality, outcome.scratch_quality) for outcome in found]
    paper = PAPER[start_of(profile)]
    yield measured(f"{name}: quality kept in the mean ({paper})", ratios, ratio_of_sums, informative())
    prompts = len(set(held_out.study.prompts))
    saved = sum(outcome.skipped_steps for outcome in found) / step_count / prompts
    yield Figure(f"{name}: steps saved, of all prompts", saved, informative(), prompts)


def kept_share(name: str, kept: Sequence[bool], target: Target) -> Figure:
    return share(name, sum(kept), len(kept), target)


if __name__ == "__main__":
    raise SystemExit(main())
