"""Painting and timing a recording, by the very functions that a worker's engine calls."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from benchmarks.machine import current_commit, describe_machine
from benchmarks.report import now
from pentimento.diffusion.families import Conditioning, DenoiserInput, DiffusionModel, load_model
from pentimento.diffusion.images import decode_pixels, encode_pixels
from pentimento.diffusion.painting import NoiseStart, Painting, PaintingRequest, model_input, prepare, take_step
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import GenerationSpec
from zoo.devices import device
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.evaluate.calibration import confidence
from zoo.evaluate.examination import Examiner
from zoo.registry import entry_of
from zoo.replay.recording import (
    FORMAT,
    VERSION,
    Discriminator,
    Model,
    Picture,
    Profile,
    Prompt,
    Recording,
    Timing,
    make_timing,
)
from zoo.train.loop import CHECKPOINT

PAIR = ("tiny-light", "tiny-heavy")
DISCRIMINATOR = "tiny-discriminator"
BATCHES = (1, 2, 4, 8)
LOADS, WARM_UP = 3, 3
SAMPLES = 40  # of each stage and batch


@dataclass(frozen=True)
class Painted:
    """What a model made of the prompts: uint8 pictures (n, 3, height, width), their PNGs, and its profile."""

    model: DiffusionModel
    images: Tensor
    pngs: list[bytes]
    profile: Profile
    steps: int
    guidance_scale: float


def record(weights: Path, work: Path, prompt_count: int, kept: int) -> tuple[Recording, dict[str, bytes]]:
    """Of light and heavy, and of the discriminator and the judge where they are there; and the PNGs by file name.

    Pictures are kept of the first `kept` prompts, their qualities of all. Times are on torch's number of threads.
    """
    prompts = examination_prompts(prompt_count)
    quality = Quality(weights, work, prompts)
    models, files = [], {}
    for name in PAIR:
        painted = paint_and_time(weights / name, entry_of(name, weights), prompts)
        names = [f"{name}-{number:03d}.png" for number in range(min(kept, prompt_count))]
        files |= dict(zip(names, painted.pngs, strict=False))
        models.append(_model(name, painted, quality.of(painted.images, names, painted.pngs)))
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


def _model(name: str, painted: Painted, pictures: tuple[Picture, ...]) -> Model:
    info = painted.model.info
    return Model(
        name=name,
        digest=info.model_digest,
        family=info.family,
        width_px=info.default_width_px,
        height_px=info.default_height_px,
        steps=painted.steps,
        guidance_scale=painted.guidance_scale,
        profile=painted.profile,
        pictures=pictures,
    )


@torch.inference_mode()
def paint_and_time(folder: Path, entry: dict[str, Any], prompts: Prompts) -> Painted:
    """Every prompt alone, as a worker does, and a few together for the times of larger batches."""
    load = Stopwatch()
    for _ in range(LOADS + 1):  # the first one imports what is needed as well
        model = load.time(lambda: load_model(folder, device(), torch.float32))
    steps, scale = int(entry["default_steps"]), float(entry["default_guidance_scale"])
    requests = [
        PaintingRequest(_spec(model, text, seeds[0], steps, scale), NoiseStart())
        for text, seeds in zip(prompts.captions, prompts.seeds(1), strict=True)
    ]
    text, step, decode, encode = Stopwatch(), Stopwatch(), Stopwatch(), Stopwatch()
    pngs = []
    for request in requests:
        text.time(lambda spec=request.spec: model.encode_prompt(spec.prompt))
        painting = prepare(model, PromptMemo(model, 2), request)
        while not painting.done:
            step.time(lambda picture=painting: step_together(model, [picture]))
        pixels = decode.time(lambda latent=painting.state.latent: model.decode_latent(latent))
        pngs.append(encode.time(lambda made=pixels: encode_pixels(made, "png")))
    profile = Profile(
        load=load.timing(skipped=1),
        encode_text=text.timing(),
        step=(step.timing(), *(_time_batch(model, requests, batch) for batch in BATCHES[1:])),
        decode=decode.timing(),
        encode_png=encode.timing(),
    )
    return Painted(model, _images(pngs, model), pngs, profile, steps, scale)


def _spec(model: DiffusionModel, prompt: str, seed: int, steps: int, scale: float) -> GenerationSpec:
    info = model.info
    size = (info.default_width_px, info.default_height_px)
    return GenerationSpec(prompt, "", "", *size, steps, scale, info.schedulers[0], seed)


def _time_batch(model: DiffusionModel, requests: Sequence[PaintingRequest], batch: int) -> Timing:
    step, memo = Stopwatch(), PromptMemo(model, batch + 1)
    while len(step.samples_s) < SAMPLES + WARM_UP:
        paintings = [prepare(model, memo, requests[number % len(requests)]) for number in range(batch)]
        while not paintings[0].done and len(step.samples_s) < SAMPLES + WARM_UP:
            step.time(lambda together=paintings: step_together(model, together))
    return step.timing(batch)


def step_together(model: DiffusionModel, paintings: Sequence[Painting]) -> None:
    """One step of pictures that are equally far, in one pass of the network; of one picture, what the engine does."""
    inputs = [model_input(model, painting) for painting in paintings]
    together = DenoiserInput(
        torch.cat([one.latents for one in inputs]),
        torch.cat([one.timesteps for one in inputs]),
        Conditioning.concatenate([one.conditioning for one in inputs]),
    )
    predictions = model.predict(together).split(paintings[0].row_count)
    for painting, prediction in zip(paintings, predictions, strict=True):
        take_step(model, painting, prediction)


def _images(pngs: Sequence[bytes], model: DiffusionModel) -> Tensor:
    pixels = [decode_pixels(png, model.info.default_width_px, model.info.default_height_px) for png in pngs]
    return ((torch.cat(pixels) + 1.0) * 127.5).round().to(torch.uint8)


class Stopwatch:
    """Wall-clock seconds of one stage, called again and again."""

    def __init__(self) -> None:
        self.samples_s: list[float] = []

    def time(self, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        done = act()
        if device().type == "cuda":
            torch.cuda.synchronize()
        self.samples_s.append(time.perf_counter() - began)
        return done

    def timing(self, batch: int = 1, skipped: int | None = None) -> Timing:
        """Of SAMPLES evenly spread, without those that warmed up, if any are left."""
        warm = self.samples_s[WARM_UP if skipped is None else skipped :] or self.samples_s
        chosen = np.linspace(0, len(warm) - 1, min(SAMPLES, len(warm))).astype(int)
        return make_timing(batch, [warm[number] for number in chosen])


class Quality:
    """The dual encoder, and the judge and the discriminator where they are there."""

    def __init__(self, weights: Path, work: Path, prompts: Prompts) -> None:
        self._examiner, self._prompts = Examiner(weights, work), prompts
        self._judged = (work / "judge" / CHECKPOINT).exists()
        self._discriminator: Any = None
        if (weights / DISCRIMINATOR).is_dir():
            self._discriminator = AutoModelForImageClassification.from_pretrained(weights / DISCRIMINATOR)
            self._digest = str(entry_of(DISCRIMINATOR, weights)["digest"])

    def of(self, images: Tensor, names: Sequence[str], pngs: Sequence[bytes]) -> tuple[Picture, ...]:
        """The first pictures have names, under which their PNGs are kept."""
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
            pictures.append(Picture(round(scores[number], 4), *rounded, *kept))
        return tuple(pictures)

    def time_discriminator(self) -> Discriminator | None:
        if self._discriminator is None:
            return None
        timings = []
        for batch in BATCHES:
            watch, pixels = Stopwatch(), as_pixels(self._prompts.drawn[:1]).expand(batch, -1, -1, -1).contiguous()
            for _ in range(SAMPLES + WARM_UP):
                watch.time(lambda batched=pixels: confidence(self._discriminator, batched))
            timings.append(watch.timing(batch))
        return Discriminator(DISCRIMINATOR, self._digest, tuple(timings))
