"""Train the flow transformer further against the heavy UNet's predictions (knowledge distillation, Hinton et al. 2015).

From data alone it learns shapes slowly: at most moments of the flow the drawing's velocity is mostly chance. The UNet's
prediction at the same point is its mean, without the chance. Two stages: the whole image first, then mostly its
objects: their shapes and fills are few of the latents and are learnt last.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from zoo.devices import device, half_precision
from zoo.drawing.dataset import TRAIN_COUNT
from zoo.train.denoiser import CAPTION_DROPOUT, encode_drawings, make_heavy, make_scheduler
from zoo.train.flow import BATCH, FlowPart, make_flow, moments
from zoo.train.loop import TrainingPlan, load_trained

PLAN = TrainingPlan(steps=4500, peak_rate=1.5e-3, warmup=100, cooldown=0.6, ema_decay=0.998)
REFINING_PLAN = TrainingPlan(steps=7000, peak_rate=1.2e-3, warmup=100, cooldown=0.7, ema_decay=0.998)


class FlowDistilledPart(FlowPart):
    name, start = "flow-distilled", "flow"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        super().__init__(work, seed, count, batch)
        self.module = load_trained(make_flow(), work / self.start).to(device()).requires_grad_(True)
        self.teacher = load_trained(make_heavy(), work / "heavy").to(device())
        encoded = encode_drawings(work, count)
        self.states, self.empty = encoded.states, encoded.empty
        alphas = make_scheduler().alphas_cumprod
        self.signal, self.spread = alphas.sqrt(), (1.0 - alphas).sqrt()
        # The UNet's timesteps on the flow: both mix the same two terms, one with shares that add up to 1.
        self.times = self.spread / (self.signal + self.spread)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(self.latents), (self.batch,), generator=generator)
        dropped = torch.rand(self.batch, generator=generator) < CAPTION_DROPOUT
        timesteps = torch.searchsorted(self.times, moments(self.batch, generator)).clamp(max=len(self.times) - 1)
        clean, when = self.latents[rows], self.times[timesteps]
        noisy = torch.lerp(clean, torch.randn(clean.shape, generator=generator), when[:, None, None, None])
        wanted = self._velocity(noisy, timesteps, torch.where(dropped[:, None, None], self.empty, self.states[rows]))
        squared = self.squared_error(noisy, when, rows, dropped, wanted, generator)
        return squared.mean(), self.by_third(squared)

    @torch.no_grad()
    def _velocity(self, noisy: Tensor, timesteps: Tensor, states: Tensor) -> Tensor:
        """Return the flow's velocity (n, channels, height, width) of the UNet's v-prediction."""
        signal, spread = (part[timesteps][:, None, None, None] for part in (self.signal, self.spread))
        point = (signal + spread) * noisy
        where = device()
        with half_precision():
            found = self.teacher(point.to(where), timesteps.to(where), states.float().to(where), return_dict=False)[0]
        # noise less drawing, each as the UNet predicts it from here
        return (spread - signal) * point + (spread + signal) * found.float().cpu()


class FlowRefinedPart(FlowDistilledPart):
    """Continue from `flow-distilled`, with the objects' weights squared."""

    name, start = "flow-refined", "flow-distilled"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        super().__init__(work, seed, count, batch)
        squared = self.weights.square()
        self.weights = squared / squared.mean()
