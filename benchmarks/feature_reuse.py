"""Measure the time and the quality of images with reused deep features, alone and after a cached start.

    python -m benchmarks.feature_reuse --scorer SCORERS [--prompts 128] [--rounds 24]

The zoo's UNet and transformer, each by the schedule that a frontdoor takes from its feature profile, by the rule
`lower_bound` (all requests) if it allows one, else by `mean` (requests that ask):
prompts that did not make the profile (`zoo.scene_log`, another seed) with and without reuse, same seeds; the stricter
of CLIPScore and attribute scores against the image without. SCORERS is a work folder of training
(`benchmarks.image_scorers`).

Time is that of a whole image in process, from the prompt to the PNG, one at a time, in turns with the image without
reuse, with a cached latent as the start (NIRVANA's K of 20 of 50 steps), and with both. Their product is the
time if the two savings multiply. At the size of Stable Diffusion 1.5, with random weights, one step of each kind.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.thinning import UnseenPrompts, held_out_study, plain_profile
from lab.runs.intervals import median_ratio, ratio_of_sums
from lab.runs.measure import (
    Figure,
    at_least,
    at_most,
    informative,
    interleave,
    measured,
    parse_options,
    publish,
    seconds_of,
    share,
)
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.families.unet_passes import AttendedTexts, UNetPasses
from pentimento.policies.thinning import ThinningOption, thinned_steps
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.profiles.kinds import options
from pentimento.profiles.rules import ThresholdRule
from pentimento.supervisor.models import FEATURE_PROFILES
from services.unet_worker.profiling.reuse_study import StudyModel
from services.unet_worker.profiling.steps_study import ThinningStudy

MODELS = ("tiny-heavy", "tiny-flow")
LEAST_QUALITY = 0.98
# A frontdoor uses only schedules that keep this share in the mean.
LEAST_SHARE = 0.99
RESUMED_SHARE = 0.4


def main() -> int:
    chosen = parse_options("feature_reuse", __doc__, add_options)
    rest = chosen.rest
    count, rounds = (8, 3) if chosen.quick else (rest["prompts"], rest["rounds"])
    figures, notes = list[Figure](), dict[str, str]()
    for name in MODELS:
        profile = plain_profile(name, FEATURE_PROFILES, ProfileKind.FEATURES)
        strict, lenient = allowed(profile, ThresholdRule.LOWER_BOUND), allowed(profile, ThresholdRule.MEAN)
        option = strict or lenient
        assert option is not None and lenient is not None
        study = held_out_study(profile, UnseenPrompts(rest["scorer"], count, rest["log_seed"]))
        figures += time_figures(name, study.model, option, rounds)
        figures += quality_figures(name, study, option)
        notes[name] = (
            f"{option.total} of {study.model.step_count} steps whole, all to step {option.first_step}, by "
            f"{'lower_bound' if strict else 'mean'}; by mean {lenient.total}"
        )
    figures += full_size_figures(2 if chosen.quick else 3)
    return publish(chosen, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scorer", type=Path, required=True, metavar="DIR", help="folder of the attribute scorer")
    parser.add_argument("--prompts", type=int, default=128, help="of the held-out log")
    parser.add_argument("--rounds", type=int, default=24, help="images of each kind that are timed")
    parser.add_argument("--log-seed", type=int, default=22)


def allowed(profile: Profile, rule: ThresholdRule) -> ThinningOption | None:
    """Return the schedule that a frontdoor takes by that rule; None if there is none."""
    found = [one for one in options(profile, profile.conditions.step_count, rule) if one.share >= LEAST_SHARE]
    return min(found, key=lambda option: (option.total, -option.share), default=None)


def quality_figures(name: str, study: ThinningStudy, option: ThinningOption) -> Iterator[Figure]:
    """Yield the quality that held-out prompts keep."""
    samples = study.samples(study.batch, option.first_step, option.taken_count, option.spacing)
    pairs = [(sample.quality, sample.full_quality) for sample in samples]
    yield measured(f"{name}: quality kept in the mean", pairs, ratio_of_sums, at_least(LEAST_QUALITY))
    kept = sum(sample.keeps(0.95) for sample in samples)
    yield share(f"{name}: share of images that keep 0.95", kept, len(samples), informative())


def time_figures(name: str, model: StudyModel, option: ThinningOption, rounds: int) -> Iterator[Figure]:
    """Yield the time of an image with reuse, with a cached start, and with both, each ÷ without."""
    full = thinned_steps(option, model.step_count)
    step = int(RESUMED_SHARE * model.step_count)
    requests = dict[str, DenoisingRequest]()
    plain = model.request("a red star at night", 7, NoiseStart())
    latent = latent_of(model, replace(plain, capture_steps=frozenset({step})), step)
    requests["whole"] = plain
    requests["reused"] = replace(plain, full_steps=full)
    requests["hit"] = replace(plain, start=LatentStart(latent, step))
    requests["both"] = replace(requests["hit"], full_steps=full)
    for request in requests.values():
        model.generated(name, [request])
    sides = {kind: partial(seconds_of_image, model, request) for kind, request in requests.items()}
    seconds = interleave(sides, rounds)
    yield measured(f"{name}: time with reuse ÷ without", pairs_of(seconds, "reused"), median_ratio, at_most(0.6))
    yield measured(f"{name}: time of a hit ÷ from noise", pairs_of(seconds, "hit"), median_ratio, informative())
    yield measured(
        f"{name}: time of a hit with reuse ÷ from noise", pairs_of(seconds, "both"), median_ratio, informative()
    )
    products = [
        (both * whole, hit * reused)
        for both, whole, hit, reused in zip(
            *(seconds[kind] for kind in ("both", "whole", "hit", "reused")), strict=True
        )
    ]
    yield measured(f"{name}: the last ÷ the product of the other two", products, median_ratio, at_most(1.1))


def seconds_of_image(model: StudyModel, request: DenoisingRequest, _: int) -> float:
    return seconds_of(lambda: model.generated(request.spec.model, [request]))


def pairs_of(seconds: Mapping[str, Sequence[float]], kind: str) -> list[tuple[float, float]]:
    return list(zip(seconds[kind], seconds["whole"], strict=True))


def latent_of(model: StudyModel, request: DenoisingRequest, step: int) -> Tensor:
    (image,) = model.generated("donor", [request])
    return image.latents[step]


@torch.inference_mode()
def full_size_figures(rounds: int) -> Iterator[Figure]:
    """Yield the time of a guided step that reuses features ÷ a whole one, for 512 x 512 pixels."""
    from diffusers import UNet2DConditionModel

    widths = (320, 640, 1280, 1280)
    with torch.device("meta"):
        unet = UNet2DConditionModel(
            sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=widths
        )
    unet = unet.to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    for weights in unet.parameters():
        weights.normal_(0.0, 1.0 / math.sqrt(weights[0].numel()), generator=generator)
    passes, shape = UNetPasses(unet), (2, 4, 64, 64)
    latents = torch.randn(shape, generator=generator)
    texts = AttendedTexts(passes.project_text(torch.randn((2, 77, 768), generator=generator)))
    terms = passes.time_terms(torch.full((2,), 500.0), torch.float32)

    def whole(_: int) -> float:
        return seconds_of(lambda: passes.decode(passes.encode(latents, texts, terms), texts, terms))

    features = passes.deep(passes.encode(latents, texts, terms), texts, terms)

    def reused(_: int) -> float:
        return seconds_of(lambda: passes.finish(features, passes.shallow(latents, texts, terms), texts, terms))

    seconds = interleave({"whole": whole, "reused": reused}, rounds)
    yield Figure(
        "Stable Diffusion 1.5's size: a step that reuses ÷ a whole one",
        median_ratio(list(zip(seconds["reused"], seconds["whole"], strict=True))),
        informative(),
        rounds,
    )


if __name__ == "__main__":
    raise SystemExit(main())
