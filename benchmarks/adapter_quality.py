"""Measure the quality of images with one and two LoRAs as Katz's Table 3: loaded during the first steps (BAL), and none
at all.

    python -m benchmarks.adapter_quality

The reference is diffusers' pipeline of `tiny-heavy`, which loads the LoRAs first and fuses them: one adapter after the
other. The step engine generates the same held-out prompts with the same seeds: with the LoRAs from the start, from the
step that the zoo's bounds allow (BAL, the default; of two LoRAs the earlier step), from Katz's step 10 of 50, and
without LoRAs. SSIM is with the reference's
image, the Fréchet distance with all of its images, over the image embeddings of `tiny-clip` in their eight directions
of largest variance; CLIPScore is by `tiny-clip`. With 32 prompts the distance says which arm is nearer, not how
good the images are. Not shown: ControlNets (`controlnet_golden`), latency (`adapter_latency`).
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.image_distances import FrechetReference, moments, structural_similarity
from benchmarks.lora_async import FIRST_PROMPT, KATZ_STEPS, allowed_steps, lora_name, pixels_of_all
from lab.runs.measure import Figure, at_least, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.loras import layers_of, lora_file_in, read_lora
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind
from services.unet_worker.profiling.lora import LatenessStudy
from services.unet_worker.profiling.reuse import study_model
from services.unet_worker.profiling.settings import StudyRunSettings
from zoo.drawing.prompts import examination_prompts
from zoo.evaluate.examination import Examiner
from zoo.registry import WEIGHTS

MODEL = "tiny-heavy"
BATCH = 8
DIRECTIONS = 8
# Katz, Table 3: SSIM of BAL with diffusers' images.
KATZ_SSIM = 0.83
ON_TIME, ALLOWED, KATZ, NONE = "from the start", "BAL", f"from step {KATZ_STEPS}", "no LoRA"


def diffusers_images(files: Sequence[Path], prompts: Sequence[str], steps: int, guidance_scale: float) -> Tensor:
    """Return the reference's images, uint8 (n, 3, height, width)."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    parts: dict[str, Any] = {"safety_checker": None, "feature_extractor": None}
    pipeline = StableDiffusionPipeline.from_pretrained(WEIGHTS / MODEL, **parts)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    for number, file in enumerate(files):
        pipeline.load_lora_weights(file.parent, weight_name=file.name, adapter_name=f"lora{number}")
    pipeline.set_adapters([f"lora{number}" for number in range(len(files))])
    pipeline.fuse_lora()
    options = {"num_inference_steps": steps, "guidance_scale": guidance_scale, "output_type": "pt"}
    found = []
    with torch.inference_mode():
        for first in range(0, len(prompts), BATCH):
            part = list(prompts[first : first + BATCH])
            seeds = range(FIRST_PROMPT + first, FIRST_PROMPT + first + len(part))
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            found.append(pipeline(part, generator=generators, **options).images)
    return (torch.cat(found) * 255.0).round().to(torch.uint8)


def arms_of(study: LatenessStudy, files: Sequence[Path], name: str, allowed: int) -> dict[str, Tensor]:
    """Return the engine's images by arm."""
    model = study.model.generator.model
    base = layers_of(model.info.family, model.adaptable)
    loras = [read_lora(file, base, model.dtype) for file in files]
    steps = {ON_TIME: 0, ALLOWED: allowed, KATZ: KATZ_STEPS}
    found = {
        arm: pixels_of_all(study.generated(f"{name} from step {step}", loras, step)) for arm, step in steps.items()
    }
    return {**found, NONE: pixels_of_all(study.without)}


def figures_of(
    name: str, reference: Tensor, arms: Mapping[str, Tensor], prompts: Sequence[str], examiner: Examiner
) -> Iterator[Figure]:
    """Yield the three measures of each arm."""
    features = examiner.embed_images(reference).double().numpy()
    frechet = FrechetReference(features, DIRECTIONS)
    scores = examiner.clip_scores(reference, list(prompts)).tolist()
    for arm, images in arms.items():
        ssim = structural_similarity(reference.float() / 255, images.float() / 255).tolist()
        target = {ON_TIME: at_least(0.99), ALLOWED: at_least(KATZ_SSIM)}.get(arm, informative())
        yield measured(f"{name}, {arm}: SSIM with diffusers", ssim, fmean, target)
    distances = {}
    for arm, images in arms.items():
        found = moments(frechet.project(examiner.embed_images(images).double().numpy()))
        distances[arm] = frechet.distance(found)
        yield Figure(f"{name}, {arm}: Fréchet distance", distances[arm], informative(), len(images))
    ratio = distances[ALLOWED] / distances[NONE]
    yield Figure(f"{name}: Fréchet distance of BAL ÷ of no LoRA (Katz: 2.1 ÷ 11.4)", ratio, at_most(1.0))
    yield measured(f"{name}, diffusers: CLIPScore", scores, fmean, informative())
    for arm, images in arms.items():
        yield measured(
            f"{name}, {arm}: CLIPScore", examiner.clip_scores(images, list(prompts)).tolist(), fmean, informative()
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=32)


def main() -> int:
    options = parse_options("adapter_quality", __doc__, add_options)
    torch.set_num_threads(1)
    count = BATCH if options.quick else options.rest["prompts"]
    prompts = examination_prompts(count, FIRST_PROMPT).captions
    model = study_model(WEIGHTS / MODEL, StudyRunSettings(max_batch=BATCH))
    study = LatenessStudy(model, prompts, (), FIRST_PROMPT)
    examiner = Examiner(WEIGHTS, WEIGHTS)
    figures: list[Figure] = []
    bounds = list(read_profiles([WEIGHTS / LORA_BOUNDS_FILE]).of(ProfileKind.LORA))
    for chosen in (*([bound] for bound in bounds), bounds[:2]):
        name = " and ".join(lora_name(bound) for bound in chosen)
        files = [file for bound in chosen if (file := lora_file_in(WEIGHTS / lora_name(bound))) is not None]
        allowed = min(allowed_steps(bound) for bound in chosen)
        reference = diffusers_images(files, prompts, model.step_count, model.spec.guidance_scale)
        figures += figures_of(name, reference, arms_of(study, files, name, allowed), prompts, examiner)
    figures.sort(key=lambda figure: figure.target.limit is None)
    return publish(options, figures, notes={"prompts": count, "steps": model.step_count})


if __name__ == "__main__":
    raise SystemExit(main())
