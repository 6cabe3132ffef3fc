"""Pictures with LoRAs: diffusers' own loader and PEFT's layers on one side, the step engine on the other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pentimento.diffusion.engine import (
    BatchLimits,
    EagerDenoiser,
    EngineSettings,
    PaintingTicket,
    SilentObserver,
    StepLoop,
)
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.loras import AdapterSet, WeightedLora, layers_of, read_lora
from pentimento.diffusion.painting import NoiseStart, PaintingRequest
from pentimento.domain.generation import GenerationSpec
from pentimento.testing.diffusers_reference import Case, DiffusersReference
from pentimento.testing.latent_listener import LatentListener

# A file and the weight that it is asked for with.
WeightedFile = tuple[Path, float]


def latents_of_diffusers(checkpoint: Path, case: Case, files: Sequence[WeightedFile], *, fused: bool) -> Tensor:
    """Return the final latents of diffusers' pipeline with these LoRAs: `load_lora_weights` and `set_adapters`, and
    `fuse_lora` where they are `fused`; in networks of its own, as merging is not undone exactly."""
    reference = DiffusersReference(checkpoint)
    pipeline, names = _with_loras(reference, case, files)
    if fused:
        pipeline.fuse_lora(adapter_names=names)
    return reference.latents(case, blank_image(checkpoint))


def exact_latents_of_diffusers(checkpoint: Path, case: Case, files: Sequence[WeightedFile], like: Tensor) -> Tensor:
    """Return what `latents_of_diffusers` does, fused, by networks in double precision: what both sides round."""
    reference = DiffusersReference(checkpoint)
    pipeline, names = _with_loras(reference, case, files)
    pipeline.to(torch.float64)
    pipeline.fuse_lora(adapter_names=names)
    return reference.exact_latents(case, blank_image(checkpoint), like)


def _with_loras(reference: DiffusersReference, case: Case, files: Sequence[WeightedFile]) -> tuple[Any, list[str]]:
    """A pipeline over the reference's networks, and the names that these LoRAs have there."""
    pipeline = reference.pipeline(case)
    names = [f"lora{number}" for number in range(len(files))]
    for name, (path, _) in zip(names, files, strict=True):
        pipeline.load_lora_weights(path.parent, weight_name=path.name, adapter_name=name)
    pipeline.set_adapters(names, [weight for _, weight in files])
    return pipeline, names


def blank_image(checkpoint: Path) -> Image.Image:
    """Return an image of the size that the checkpoint's pictures have."""
    from pentimento.diffusion.families import load_model

    info = load_model(checkpoint, torch.device("cpu"), torch.float32).info
    return Image.new("RGB", (info.default_width_px, info.default_height_px))


def read_set(model: DiffusionModel, files: Sequence[WeightedFile]) -> AdapterSet:
    """Return the LoRAs of these files for a model."""
    base = layers_of(model.info.family, model.adaptable)
    return tuple(WeightedLora(read_lora(path, base, model.dtype), weight) for path, weight in files)


def spec_of_case(model: DiffusionModel, case: Case) -> GenerationSpec:
    """Return the request that paints a case in the model's own size."""
    info = model.info
    return GenerationSpec(
        case.prompt,
        case.negative_prompt,
        "model",
        info.default_width_px,
        info.default_height_px,
        case.steps,
        case.guidance_scale,
        case.scheduler,
        case.seed,
        case.eta,
    )


@dataclass(frozen=True)
class ReadyLoras:
    """LoRAs that are there from the start, or taken at a step; see `painting.LoraSource`."""

    adapters: AdapterSet
    latest_step: int = 0

    def take(self, step_index: int) -> AdapterSet | None:
        """Return them from `latest_step` on."""
        return self.adapters if step_index >= self.latest_step else None


@torch.inference_mode()
def latents_of_engine(
    model: DiffusionModel, specs: Sequence[GenerationSpec], sets: Sequence[AdapterSet | ReadyLoras], **settings: Any
) -> list[Tensor]:
    """Return the final latents of requests that come together, each with its LoRAs: patched into the weights where all
    have the same, beside them where not. The model has its own weights afterwards."""
    chosen = EngineSettings(**{"max_batch": len(specs), **settings})
    clock: Callable[[], float] = time.monotonic
    limits = BatchLimits(chosen.max_batch, None, clock)
    loop = StepLoop(model, EagerDenoiser(model), limits, chosen, SilentObserver(), clock)
    heard = [LatentListener() for _ in specs]
    for spec, adapters, listener in zip(specs, sets, heard, strict=True):
        source = adapters if isinstance(adapters, ReadyLoras) else ReadyLoras(adapters)
        request = PaintingRequest(spec, NoiseStart(), loras=source if source.adapters else None)
        loop.submit(PaintingTicket(request, listener, clock()))
    while loop.tick():
        pass
    loop.restore_weights()
    return [one.result() for one in heard]


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two elements; as a share of the largest element where that is above 1:
    a network of random weights makes latents of any size."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1.0))
