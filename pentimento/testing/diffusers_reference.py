"""diffusers' own pipelines over one checkpoint, as `from_pretrained` makes them: what a worker's latents are held
against, family by family and scheduler by scheduler."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pentimento.domain.generation import Scheduler


@dataclass(frozen=True)
class Case:
    """One image; `strength` None is text to image; `masked`: it changes where `mask_image` is white alone. The worker's
    mask is grey, or transparent where it is white (`alpha_mask`); `white_mask`: it is white everywhere."""

    prompt: str
    negative_prompt: str = ""
    scheduler: Scheduler = Scheduler.DDIM
    seed: int = 0
    steps: int = 20
    guidance_scale: float = 3.0
    eta: float = 0.0
    strength: float | None = None
    masked: bool = False
    alpha_mask: bool = False
    white_mask: bool = False

    def mask(self, width_px: int, height_px: int) -> Image.Image:
        """Return the grey mask that diffusers takes."""
        if self.white_mask:
            return Image.new("L", (width_px, height_px), 255)
        return mask_image(width_px, height_px)


# By the pipeline class of model_index.json: text to image, from an image, and from one under a mask.
_PIPELINES = {
    "StableDiffusionPipeline": (
        "StableDiffusionPipeline",
        "StableDiffusionImg2ImgPipeline",
        "StableDiffusionInpaintPipeline",
    ),
    "StableDiffusionInpaintPipeline": ("StableDiffusionInpaintPipeline",) * 3,
    "StableDiffusionXLInpaintPipeline": ("StableDiffusionXLInpaintPipeline",) * 3,
    "StableDiffusionXLPipeline": (
        "StableDiffusionXLPipeline",
        "StableDiffusionXLImg2ImgPipeline",
        "StableDiffusionXLInpaintPipeline",
    ),
    "StableDiffusion3Pipeline": (
        "StableDiffusion3Pipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
    ),
}
_SCHEDULERS = {
    Scheduler.DDIM: "DDIMScheduler",
    Scheduler.EULER: "EulerDiscreteScheduler",
    Scheduler.EULER_ANCESTRAL: "EulerAncestralDiscreteScheduler",
    Scheduler.DPM_SOLVER_PP_2M: "DPMSolverMultistepScheduler",
    Scheduler.FLOW_MATCH_EULER: "FlowMatchEulerDiscreteScheduler",
}
# What each family's constructor takes besides components.
_SETTINGS = ("requires_safety_checker", "force_zeros_for_empty_prompt", "add_watermarker")


class DiffusersReference:
    """Float32 in this process, on the CPU or another device. Latents come back to the CPU."""

    def __init__(self, model: Path, device: str = "cpu") -> None:
        from diffusers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        self._model = model
        self._index = json.loads((model / "model_index.json").read_text())
        self._kinds = _PIPELINES[self._index["_class_name"]]
        absent = {name: None for name, value in self._index.items() if value == [None, None]}
        pipeline = _class(self._kinds[0]).from_pretrained(model, dtype=torch.float32, **absent).to(device)
        self._components = pipeline.components
        self._settings = {key: self._index[key] for key in _SETTINGS if key in self._index}

    def exact_latents(self, case: Case, image: Image.Image, like: torch.Tensor) -> torch.Tensor:
        """The final latents of a case from noise, `like` those in single precision: in double precision from the same
        noise, for networks that were given it. The schedule's own numbers are those of single precision."""
        noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(case.seed)).double()
        return self.latents(case, image, noise)

    def latents(self, case: Case, image: Image.Image, noise: torch.Tensor | None = None) -> torch.Tensor:
        """The final latents (1, channels, height, width); `image` gives the size, or is where the case starts. `noise`
        is what it starts from, in double precision; by default what the seed gives."""
        extra: dict[str, Any] = {"height": image.height, "width": image.width}
        pipeline = self.pipeline(case)
        if noise is not None:
            extra["latents"] = noise
            if case.scheduler in (Scheduler.EULER, Scheduler.FLOW_MATCH_EULER):
                pipeline.scheduler.step = partial(_exact_euler_step, pipeline.scheduler)
        if case.strength is not None:
            extra = {"image": _tensor_of(image), "strength": case.strength}
        if case.masked:
            size = {"height": image.height, "width": image.width}
            extra = {**extra, **size, "mask_image": case.mask(image.width, image.height)}
        latents: torch.Tensor = pipeline(
            case.prompt,
            negative_prompt=case.negative_prompt or None,
            num_inference_steps=case.steps,
            guidance_scale=case.guidance_scale,
            generator=torch.Generator().manual_seed(case.seed),
            output_type="latent",
            **self._family_arguments(case),
            **extra,
        ).images
        return latents.cpu()

    def pipeline(self, case: Case) -> Any:
        """Return a pipeline of the case's scheduler and kind, over the networks that all of this reference's have."""
        scheduler = _class(_SCHEDULERS[case.scheduler]).from_pretrained(self._model, subfolder="scheduler")
        kind = _class(self._kinds[2 if case.masked else 0 if case.strength is None else 1])
        pipeline = kind(**{**self._components, "scheduler": scheduler}, **self._settings)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def _family_arguments(self, case: Case) -> dict[str, Any]:
        if case.scheduler is not Scheduler.FLOW_MATCH_EULER:
            return {"eta": case.eta}
        tokens = self._index.get("max_sequence_length")
        return {} if tokens is None else {"max_sequence_length": tokens}


def _exact_euler_step(
    scheduler: Any, model_output: torch.Tensor, timestep: torch.Tensor, sample: torch.Tensor, **options: Any
) -> tuple[torch.Tensor]:
    """Euler's step where the network predicts the derivative; diffusers' own goes by single precision."""
    if scheduler.step_index is None:
        scheduler._init_step_index(timestep)
    step = scheduler.step_index
    scheduler._step_index += 1
    return (sample + model_output * (scheduler.sigmas[step + 1] - scheduler.sigmas[step]).double(),)


def mask_image(width_px: int, height_px: int) -> Image.Image:
    """A mask that is white in the middle half of the columns: on its right by the darkest grey that counts as white."""
    columns = np.zeros(width_px, dtype=np.uint8)
    columns[width_px // 4 : width_px // 2] = 255
    columns[width_px // 2 : 3 * width_px // 4] = 128
    columns[3 * width_px // 4 :] = 127
    return Image.fromarray(np.tile(columns, (height_px, 1)))


def _tensor_of(image: Image.Image) -> torch.Tensor:
    """(1, 3, height, width) in 0..1, channels outermost in memory too. Of a PIL image diffusers would make a tensor
    with the channels innermost, its convolutions would sum in another order, and the last bits would differ."""
    pixels = torch.from_numpy(np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0)
    return pixels.permute(2, 0, 1).unsqueeze(0).contiguous()


def _class(name: str) -> Any:
    import diffusers

    return getattr(diffusers, name)
