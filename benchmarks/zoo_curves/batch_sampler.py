"""Generate images in batches by the worker's engine: its model adapters and its schedules."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pentimento.diffusion.families import Conditioning, DenoiserInput, load_model
from pentimento.diffusion.prompts import PromptMemo
from pentimento.diffusion.schedulers import SamplerState, make_schedule
from pentimento.domain.generation import Scheduler
from zoo.drawing.dataset import as_pixels
from zoo.painting.store import as_bytes

BATCH = 64


class BatchSampler:
    """Run DDIM under classifier-free guidance at one number of steps. Latents are (n, channels, height, width)."""

    def __init__(self, folder: Path, steps: int, scale: float) -> None:
        self.model = load_model(folder, torch.device("cpu"), torch.float32)
        self.schedule = make_schedule(self.model.scheduler_config(Scheduler.DDIM), steps, 0.0)
        self.scale = scale
        self._prompts = PromptMemo(self.model, 10_000)

    def noise(self, seeds: Sequence[int]) -> Tensor:
        info = self.model.info
        shape = self.model.latent_shape(info.default_width_px, info.default_height_px)
        return torch.cat([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])

    @torch.inference_mode()
    def renoised(self, images: Tensor, seeds: Sequence[int], step: int) -> Tensor:
        """Add noise to uint8 images (n, 3, height, width) up to the level before `step` (MoDM, section 5.1)."""
        clean = self.model.encode_image(as_pixels(images), torch.Generator())
        return self.schedule.noised_latent(clean, self.noise(seeds), step)

    def denoise(
        self,
        latents: Tensor,
        prompts: Sequence[str],
        first_step: int = 0,
        last_step: int | None = None,
        kept: Sequence[int] = (),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Denoise from before `first_step` to the end or before `last_step`; also return the latents before the steps
        `kept`."""
        parts = [
            self._denoise(part, prompts[start : start + BATCH], first_step, last_step, kept)
            for start, part in zip(range(0, len(prompts), BATCH), latents.split(BATCH), strict=True)
        ]
        held = {step: torch.cat([states[step] for _, states in parts]) for step in kept}
        return torch.cat([final for final, _ in parts]), held

    @torch.inference_mode()
    def _denoise(
        self, latents: Tensor, prompts: Sequence[str], first_step: int, last_step: int | None, kept: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        conditioning = self._conditioning([""] * len(prompts) + list(prompts))
        rows = latents.new_empty((2 * len(prompts), *latents.shape[1:]))
        state, held = SamplerState(latents, first_step), {}
        while state.step_index < (self.schedule.step_count if last_step is None else last_step):
            for half in rows.chunk(2):
                self.schedule.fill_model_input(state, half)
            given = DenoiserInput(rows, self.schedule.timesteps[state.step_index], conditioning)
            unconditional, conditional = self.model.predict(given).chunk(2)
            prediction = unconditional + self.scale * (conditional - unconditional)
            state, _ = self.schedule.advance(state, prediction, None)
            if state.step_index in kept:
                held[state.step_index] = self.schedule.to_variance_preserving(state)
        return state.latent, held

    def _conditioning(self, prompts: Sequence[str]) -> Conditioning:
        size = (self.model.info.default_width_px, self.model.info.default_height_px)
        rows = [self.model.conditioning(self._prompts.encode(prompt), *size) for prompt in prompts]
        return Conditioning.concatenate(rows)

    @torch.inference_mode()
    def decode(self, latents: Tensor) -> Tensor:
        """Return uint8 (n, 3, height, width)."""
        pixels = torch.cat([self.model.decode_latent(part) for part in latents.split(BATCH)])
        return as_bytes(pixels / 2.0 + 0.5)
