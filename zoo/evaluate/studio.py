"""Generate an examination's images once: by every exported model, for the same prompts and seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from zoo.devices import device
from zoo.drawing.dataset import as_pixels
from zoo.drawing.prompts import Prompts, examination_prompts
from zoo.evaluate.examination import BATCH, Examiner, Marks, needed
from zoo.painting.controlnet import add_control, generate_controlled
from zoo.painting.flow import generate_flow, load_flow_pipeline
from zoo.painting.lora import add_style
from zoo.painting.pipeline import generate, load_pipeline
from zoo.painting.store import ImageStore, as_bytes, weights_digest
from zoo.registry import entry_of

BASE, LIGHT, FLOW = "tiny-heavy", "tiny-light", "tiny-flow"


class Studio:
    """Generate for `count` held-out prompts and their `seeds`; images are uint8 (prompts, seeds, 3, height, width).

    `first` is the number of the first prompt, `encoder` the work folder of a dual encoder without shared weights.
    Raises NotFound for missing weights.
    """

    def __init__(
        self, weights: Path, work: Path, count: int, seeds: int, first: int = 0, encoder: Path | None = None
    ) -> None:
        logging.disable_progress_bar()
        self.weights, self.work, self.encoder = weights, work, encoder
        self.prompts: Prompts = examination_prompts(count, first)
        self.seed_count = seeds
        seed_rows = self.prompts.seeds(seeds)
        self._flat_captions = [caption for caption in self.prompts.captions for _ in range(seeds)]
        self._flat_seeds = [seed for row in seed_rows for seed in row]
        self._marks: dict[tuple[object, ...], Marks] = {}
        self._pipelines: dict[str, Any] = {}
        self.digest = lru_cache(lambda model: weights_digest(needed(weights / model)))

    @cached_property
    def examiner(self) -> Examiner:
        return Examiner(self.weights, self.work, self.encoder)

    def pipeline(self, model: str) -> Any:
        """Return stock diffusers' pipeline, loaded once."""
        if model not in self._pipelines:
            load = load_flow_pipeline if model == FLOW else load_pipeline
            self._pipelines[model] = load(needed(self.weights / model))
        return self._pipelines[model]

    def defaults(self, model: str) -> tuple[int, float]:
        """Return the registry's steps and guidance scale."""
        needed(self.weights / model)
        entry = entry_of(model, self.weights)
        return int(entry["default_steps"]), float(entry["default_guidance_scale"])

    def generate(self, model: str, steps: int | None = None, scale: float | None = None) -> Tensor:
        flat = self.generate_these(model, self._flat_captions, self._flat_seeds, steps, scale)
        return flat.unflatten(0, (len(self.prompts), self.seed_count))

    def generate_these(
        self, model: str, captions: list[str], seeds: list[int], steps: int | None = None, scale: float | None = None
    ) -> Tensor:
        """Return images of any captions and seeds: uint8 (n, 3, height, width)."""
        steps, scale = self._manner(model, steps, scale)
        manner: dict[str, object] = {"model": self.digest(model), "steps": steps, "scale": scale}

        def rows_of(rows: list[int]) -> Tensor:
            image_source = generate_flow if model == FLOW else generate
            chosen = [captions[row] for row in rows], [seeds[row] for row in rows]
            return image_source(self.pipeline(model), *chosen, steps, scale)

        return ImageStore(self.work, manner).get(captions, seeds, rows_of)

    def generate_controlled(self, controlnet: str, conditions: Tensor, steps: int | None = None) -> Tensor:
        """Return heavy's images under a ControlNet with `conditions` (prompts, 1, height, width) in 0..1."""
        steps, scale = self._manner(BASE, steps, None)
        told = conditions.repeat_interleave(self.seed_count, dim=0)
        names = [hashlib.sha256(one.numpy().tobytes()).hexdigest() for one in told]
        manner = {"model": self.digest(BASE), "controlnet": self.digest(controlnet), "steps": steps, "scale": scale}
        pipeline = add_control(self.pipeline(BASE), needed(self.weights / controlnet))

        def rows_of(rows: list[int]) -> Tensor:
            return generate_controlled(pipeline, *self._chosen(rows), told[rows], steps, scale)

        return self._stored(manner, rows_of, names)

    def generate_styled(self, lora: str, weight: float = 1.0, steps: int | None = None) -> Tensor:
        """Return heavy's images with a LoRA at a weight."""
        steps, scale = self._manner(BASE, steps, None)
        manner = {"model": self.digest(BASE), "lora": self.digest(lora), "weight": weight}

        @lru_cache
        def pipeline() -> Any:
            # Load a separate pipeline with the LoRA in its weights: peft's layers would cost a quarter more.
            styled = load_pipeline(self.weights / BASE)
            add_style(styled, self.weights / lora, lora)
            styled.fuse_lora(lora_scale=weight)
            styled.unload_lora_weights()
            return styled

        def rows_of(rows: list[int]) -> Tensor:
            return generate(pipeline(), *self._chosen(rows), steps, scale)

        return self._stored({**manner, "steps": steps, "scale": scale}, rows_of)

    def marks(self, model: str, steps: int | None = None, scale: float | None = None) -> Marks:
        """Return the marks of a model's images against their captions."""
        steps, scale = self._manner(model, steps, scale)
        key = (model, steps, scale)
        if key not in self._marks:
            self._marks[key] = self.mark(self.generate(model, steps, scale))
        return self._marks[key]

    def mark(self, images: Tensor) -> Marks:
        return self.examiner.mark(images, self.prompts.captions, self.prompts.asked)

    @cached_property
    @torch.no_grad()
    def rebuilt(self) -> Tensor:
        """Return the drawings after the autoencoder: uint8 (prompts, 1, 3, height, width)."""
        autoencoder = self.pipeline(BASE).vae
        parts = [as_pixels(part).to(device()) for part in self.prompts.drawn.split(BATCH)]
        pixels = torch.cat([autoencoder.decode(autoencoder.encode(part).latents).sample.cpu() for part in parts])
        return as_bytes(pixels / 2.0 + 0.5)[:, None]

    def _manner(self, model: str, steps: int | None, scale: float | None) -> tuple[int, float]:
        own_steps, own_scale = self.defaults(model)
        return own_steps if steps is None else steps, own_scale if scale is None else scale

    def _chosen(self, rows: list[int]) -> tuple[list[str], list[int]]:
        return [self._flat_captions[row] for row in rows], [self._flat_seeds[row] for row in rows]

    def _stored(
        self, manner: dict[str, object], rows_of: Callable[[list[int]], Tensor], names: list[str] | None = None
    ) -> Tensor:
        flat = ImageStore(self.work, manner).get(self._flat_captions, self._flat_seeds, rows_of, names)
        return flat.unflatten(0, (len(self.prompts), self.seed_count))
