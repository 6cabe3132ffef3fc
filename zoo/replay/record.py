"""Generate and profile for a recording, by a worker's engine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from lab.emulation.recording import (
    FORMAT,
    VERSION,
    Prompt,
    RecordedDiscriminator,
    RecordedImage,
    RecordedModel,
    Recording,
    ScoreCost,
)
from lab.runs.machine import current_commit, describe_machine, now
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart, denoise_step, prepare
from pentimento.diffusion.engine import Denoiser
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.images import decode_pixels, encode_pixels
from pentimento.diffusion.profiling import ProfiledBatch, profile_batches, profile_size
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec
from pentimento.profiles.costs import Cost, ModelProfile, costs_to_json
from zoo.devices import device
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.evaluate.calibration import confidence
from zoo.evaluate.examination import Examiner
from zoo.registry import entry_of
from zoo.train.loop import CHECKPOINT

PAIR = ("tiny-light", "tiny-heavy")
DISCRIMINATOR = "tiny-discriminator"
BATCHES = (1, 2, 4, 8)
LOADS = 3
REPEATS = 5  # images of each batch size that are timed
SCORES = 40  # scores of the discriminator of each batch size


@dataclass(frozen=True)
class RecordedImages:
    """Hold a model's results for the prompts: uint8 images (n, 3, height, width), their PNGs, and costs."""

    model: DiffusionModel
    images: Tensor
    pngs: list[bytes]
    profile: ModelProfile
    load: Cost
    spec: GenerationSpec


def record(weights: Path, work: Path, prompt_count: int, kept: int) -> tuple[Recording, dict[str, bytes]]:
    """Record light and heavy, and the discriminator and the attribute scorer if they exist; also return the files by
    name.

    Images are stored for the first `kept` prompts, qualities for all. Times are on torch's number of threads.
    """
    prompts = examination_prompts(prompt_count)
    quality = Quality(weights, work, prompts)
    models, files = [], {}
    for name in PAIR:
        generated = generate_and_profile(weights / name, entry_of(name, weights), prompts)
        names = [f"{name}-{number:03d}.png" for number in range(min(kept, prompt_count))]
        model = _model(name, generated, quality.of(generated.images, names, generated.pngs))
        files |= dict(zip(names, generated.pngs, strict=False))
        files[model.profile] = costs_to_json(generated.profile).encode()
        models.append(model)
    recording = Recording(
        format=FORMAT,
        version=VERSION,
        recorded_at=now(),
        commit=current_commit(),
        machine=describe_machine(device().type),
        device=device().type,
        threads=torch.get_num_threads(),
        prompts=tuple(Prompt(text, seeds[0]) for text, seeds in zip(prompts.captions, prompts.seeds(1), strict=True)),
        models=tuple(models),
        discriminator=quality.time_discriminator(),
    )
    return recording, files


def _model(name: str, generated: RecordedImages, pictures: tuple[RecordedImage, ...]) -> RecordedModel:
    info, spec = generated.model.info, generated.spec
    return RecordedModel(
        name=name,
        digest=info.model_digest,
        family=info.family,
        width_px=info.default_width_px,
        height_px=info.default_height_px,
        steps=spec.num_inference_steps,
        guidance_scale=spec.guidance_scale,
        profile=f"{name}.profile.json",
        load=generated.load,
        pictures=pictures,
    )


def generate_and_profile(folder: Path, entry: dict[str, Any], prompts: Prompts) -> RecordedImages:
    """Generate every prompt alone, as a worker does, and profile the model by batch size."""
    load = Stopwatch()
    for _ in range(LOADS + 1):  # the first one also imports libraries
        model = load.time(lambda: load_model(folder, device(), torch.float32))
    spec = _spec(model, int(entry["default_steps"]), float(entry["default_guidance_scale"]))
    pngs = [
        generate(model, replace(spec, prompt=text, seed=seeds[0]))
        for text, seeds in zip(prompts.captions, prompts.seeds(1), strict=True)
    ]
    return RecordedImages(model, _images(pngs, model), pngs, profile(folder, model, spec), load.cost(skipped=1), spec)


def _spec(model: DiffusionModel, steps: int, scale: float) -> GenerationSpec:
    info = model.info
    size = (info.default_width_px, info.default_height_px)
    return GenerationSpec("", "", "", *size, steps, scale, info.schedulers[0], 0)


@torch.inference_mode()
def generate(model: DiffusionModel, spec: GenerationSpec) -> bytes:
    """Return the PNG of a request that has the model to itself."""
    denoising = prepare(model, PromptMemo(model, 2), DenoisingRequest(spec, NoiseStart()))
    while not denoising.done:
        denoise_step(model, denoising)
    return encode_pixels(model.decode_latent(denoising.state.latent), "png")


def profile(folder: Path, model: DiffusionModel, spec: GenerationSpec) -> ModelProfile:
    """Profile as `pentimento profile cost` does."""
    denoiser = Denoiser(model)
    return ModelProfile(
        model=folder.name,
        model_digest=model.info.model_digest,
        device=device().type,
        dtype="float32",
        threads=torch.get_num_threads(),
        execution="off",
        step_count=spec.num_inference_steps,
        sizes=(profile_size(model, denoiser, spec, REPEATS),),
        batches=tuple(profile_batches(model, denoiser, [ProfiledBatch(spec, batch, REPEATS) for batch in BATCHES])),
        build_version=current_commit(),
        measured_at=now(),
    )


def _images(pngs: Sequence[bytes], model: DiffusionModel) -> Tensor:
    pixels = [decode_pixels(png, "picture", model.info.default_width_px, model.info.default_height_px) for png in pngs]
    return ((torch.cat(pixels) + 1.0) * 127.5).round().to(torch.uint8)


class Stopwatch:
    """Measure wall-clock seconds of repeated calls of one stage."""

    def __init__(self) -> None:
        self.samples_s: list[float] = []

    def time(self, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        done = act()
        if device().type == "cuda":
            torch.cuda.synchronize()
        self.samples_s.append(time.perf_counter() - began)
        return done

    def cost(self, skipped: int) -> Cost:
        """Return the cost without the first few calls, which warmed up."""
        return Cost.of(self.samples_s[skipped:])


class Quality:
    """Hold the dual encoder, and the attribute scorer and the discriminator if they exist."""

    def __init__(self, weights: Path, work: Path, prompts: Prompts) -> None:
        self._examiner, self._prompts = Examiner(weights, work), prompts
        self._judged = (work / "judge" / CHECKPOINT).exists()
        self._discriminator: Any = None
        if (weights / DISCRIMINATOR).is_dir():
            self._discriminator = AutoModelForImageClassification.from_pretrained(weights / DISCRIMINATOR)
            self._digest = str(entry_of(DISCRIMINATOR, weights)["digest"])

    def of(self, images: Tensor, names: Sequence[str], pngs: Sequence[bytes]) -> tuple[RecordedImage, ...]:
        """Return the qualities; the first images have names, under which their PNGs are stored."""
        count = len(images)
        scores = self._examiner.clip_scores(images, list(self._prompts.captions)).tolist()
        seen: list[float | None] = [None] * count
        if self._judged:
            right, _ = self._examiner.read(images, self._prompts.asked)
            seen = (right.sum(dim=1) / (self._prompts.asked >= 0).sum(dim=1)).tolist()
        found: list[float | None] = [None] * count
        if self._discriminator is not None:
            found = confidence(self._discriminator, as_pixels(images)).tolist()
        pictures = []
        for number in range(count):
            rounded = [None if value is None else round(value, 4) for value in (seen[number], found[number])]
            kept = (None, None)
            if number < len(names):
                kept = (names[number], hashlib.sha256(pngs[number]).hexdigest())
            pictures.append(RecordedImage(round(scores[number], 4), *rounded, *kept))
        return tuple(pictures)

    def time_discriminator(self) -> RecordedDiscriminator | None:
        if self._discriminator is None:
            return None
        scores = []
        for batch in BATCHES:
            watch, pixels = Stopwatch(), as_pixels(self._prompts.drawn[:1]).expand(batch, -1, -1, -1).contiguous()
            for _ in range(SCORES + 1):
                watch.time(lambda batched=pixels: confidence(self._discriminator, batched))
            scores.append(ScoreCost(batch, watch.cost(skipped=1)))
        return RecordedDiscriminator(DISCRIMINATOR, self._digest, tuple(scores))
