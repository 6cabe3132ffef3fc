"""Compare deferred images that start from the light model's image with those from noise, by the shipped profiles.

    python -m benchmarks.handover [--prompts 96]

The light model of each pair of `zoo/handover_profiles` generates held-out prompts (`zoo.scene_log`), and the zoo's
discriminator scores its images; the less confident half is deferred. The large model then generates every deferred
prompt from noise, and from the light image with the share of its steps skipped that the profile allows, or that
`--share` names. Both sides alternate, batch by batch. Quality is CLIPScore by the cache's encoder, seconds are of one
thread and of an image.

Paper (DiffServe, section 5): no change for SD-Turbo before SD 1.5; FID 18.55 → 19.75 for SDXS, where reuse stays off.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.selector_profile import LocalEncoder
from lab.runs.intervals import ratio_of_sums
from lab.runs.measure import Figure, at_least, at_most, informative, interleave, measured, parse_options, publish
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, NoiseStart
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.diffusion.images import decode_pixels
from pentimento.diffusion.weights import quiet_loaders
from pentimento.images.decoding import decode
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import reuse_share, taken_steps
from services.embedder.model import open_model
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.registry import WEIGHTS
from zoo.scene_log import clip_embedder, write_scene_log

PROFILES, ENCODER = WEIGHTS.parent / "handover_profiles", "tiny-clip"
DISCRIMINATOR = "tiny-discriminator"
BATCH, QUICK_PROMPTS, FIRST_SEED = 8, 16, 140_000

WITH, WITHOUT = "from the light image", "from noise"


@dataclass(frozen=True)
class DeferredImages:
    """Deferred prompts with the files of their light images, the light images' scores, and the large model."""

    heavy: StudyModel
    encoder: LocalEncoder
    prompts: Sequence[str]
    files: Sequence[bytes]
    seeds: Sequence[int]
    taken_count: int

    def timed(self, side: str, number: int) -> list[tuple[float, float]]:
        """Generate one batch; return for each prompt its CLIPScore and the seconds of an image."""
        rows = range(number * BATCH, min((number + 1) * BATCH, len(self.prompts)))
        requests = [self._request(side, row) for row in rows]
        began_s = time.perf_counter()
        files = [image.png for image in self.heavy.generator.generate(requests)]
        seconds = (time.perf_counter() - began_s) / len(files)
        scores = clip_scores(self.encoder, files, [self.prompts[row] for row in rows])
        return [(score, seconds) for score in scores]

    def _request(self, side: str, row: int) -> DenoisingRequest:
        request = self.heavy.request(self.prompts[row], self.seeds[row], NoiseStart())
        if side == WITHOUT:
            return request
        size = (self.heavy.spec.width_px, self.heavy.spec.height_px)
        pixels = decode_pixels(self.files[row], "image", *size)
        return replace(request, start=ImageStart(pixels, self.heavy.step_count - self.taken_count))


def main() -> int:
    options = parse_options("handover", __doc__, add_options)
    rest = options.rest
    torch.set_num_threads(1)
    quiet_loaders()
    count = QUICK_PROMPTS if options.quick else rest["prompts"]
    profiles = read_profiles([rest["profiles"]]).of(ProfileKind.HANDOVER)
    log = write_scene_log(2 * count, clip_embedder(WEIGHTS / ENCODER), np.random.default_rng(rest["log_seed"]))
    prompts = tuple(dict.fromkeys(log.prompts))[:count]
    figures = [figure for profile in profiles for figure in figures_of(profile, prompts, rest["share"])]
    return publish(options, figures, notes={"prompts": count, "log_seed": rest["log_seed"]})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="file or directory of hand-over profiles")
    parser.add_argument("--prompts", type=int, default=96, help="of the held-out log; half of them are deferred")
    parser.add_argument("--log-seed", type=int, default=14)
    parser.add_argument("--share", type=float, help="skipped share of the steps where a profile allows none [0.2]")


def figures_of(profile: Profile, prompts: Sequence[str], share: float | None) -> Iterator[Figure]:
    """Yield the share that the profile allows, and what it changes of deferred images."""
    allowed = reuse_share(profile)
    used = allowed or share or 0.2
    pair, alpha = f"{profile.of.reference} before {profile.of.model}", profile.asked.alpha
    yield Figure(f"{pair}: share of the steps that the profile skips", allowed, informative(), profile.rows[0].count)
    names = (profile.of.reference, profile.of.model)
    light, heavy = (study_model(WEIGHTS / name, StudyRunSettings(max_batch=BATCH)) for name in names)
    deferred = deferred_of(light, heavy, prompts, taken_steps(heavy.step_count, used))
    rounds = -(-len(deferred.prompts) // BATCH)
    sides = {side: partial(deferred.timed, side) for side in (WITH, WITHOUT)}
    timed = interleave(sides, rounds)
    ours, theirs = ([one for batch in timed[side] for one in batch] for side in (WITH, WITHOUT))
    named = f"{pair}, {used:.0%} skipped" + ("" if allowed else " although the profile allows none")
    scores = [(one[0], other[0]) for one, other in zip(ours, theirs, strict=True)]
    # A share that the profile refuses has no target.
    target, cheaper = (at_least(alpha), at_most(1.0)) if allowed else (informative(), informative())
    yield measured(f"{named}: CLIPScore of deferred images ÷ from noise", scores, ratio_of_sums, target)
    own = clip_scores(deferred.encoder, deferred.files, deferred.prompts)
    refused = list(zip(own, (score for _, score in scores), strict=True))
    yield measured(f"{pair}: CLIPScore of refused light images ÷ from noise", refused, ratio_of_sums, informative())
    seconds = [(one[1], other[1]) for one, other in zip(ours, theirs, strict=True)]
    yield measured(f"{named}: device seconds of a deferred image ÷ from noise", seconds, ratio_of_sums, cheaper)


def deferred_of(light: StudyModel, heavy: StudyModel, prompts: Sequence[str], taken_count: int) -> DeferredImages:
    """Generate all prompts by the light model, and keep the half that the discriminator doubts most."""
    encoder, discriminator = LocalEncoder(open_model(WEIGHTS / ENCODER)), open_discriminator(WEIGHTS / DISCRIMINATOR)
    requests = [light.request(prompt, FIRST_SEED + row, NoiseStart()) for row, prompt in enumerate(prompts)]
    files = [image.png for image in light.generator.generate(requests)]
    confidences = discriminator.confidences([decode(file, "image", discriminator.pixels) for file in files])
    rows = sorted(range(len(files)), key=lambda row: confidences[row])[: len(files) // 2]
    chosen = [prompts[row] for row in rows], [files[row] for row in rows], [FIRST_SEED + row for row in rows]
    return DeferredImages(heavy, encoder, *chosen, taken_count)


def clip_scores(encoder: LocalEncoder, files: Sequence[bytes], prompts: Sequence[str]) -> list[float]:
    """Return the cosine of each image and its prompt."""
    texts, images = encoder.embed_texts(prompts), encoder.embed_images(files)
    return [float(image @ text) for image, text in zip(images, texts, strict=True)]


if __name__ == "__main__":
    raise SystemExit(main())
