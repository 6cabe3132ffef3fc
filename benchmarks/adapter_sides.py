"""Time images with ControlNets and LoRAs by both sides of the adapter benchmarks: diffusers' pipelines, one adapter
after the other, and a worker with replicas of the ControlNet service."""

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from benchmarks.papers.constants import KATZ_LATENCIES
from lab.emulation.pace import ControlNetPace, DevicePace, LoraPace, PassTimes
from lab.fixtures.controlled_generation import ControlledCase
from lab.fixtures.controlnet_serving import ControlledByService
from lab.fixtures.diffusers_reference import Case
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.loras import lora_file_in
from pentimento.domain.generation import LoraSelection
from zoo.painting.pipeline import load_quietly
from zoo.registry import WEIGHTS

ASKED = {name: (int(name[0]), int(name[2])) for name in KATZ_LATENCIES}
ZOO_CONTROLNETS = ("tiny-controlnet-edges", "tiny-controlnet-layout", "tiny-controlnet-edges")
# The least part of a step that the decoder takes, where a ControlNet adds as much as a whole step.
LEAST_DECODER_SHARE = 0.1
ZOO_SIDE_PX, ZOO_STEPS, ZOO_GUIDANCE = 64, 50, 3.0


@dataclass(frozen=True)
class TimedRequest:
    """Store one image's adapters as "mCnL", its seconds, and its device-seconds by the profile."""

    asked: str
    seconds: float
    device_s: float


@dataclass(frozen=True)
class RealModel:
    """Name a checkpoint, its ControlNets, the files of its LoRAs, and the image to generate."""

    name: str
    checkpoint: Path
    controlnets: tuple[Path, ...]
    loras: tuple[Path, ...]
    side_px: int
    steps: int
    guidance_scale: float


def zoo_model() -> RealModel:
    """Return `tiny-heavy` with the zoo's ControlNets and LoRAs."""
    files = (lora_file_in(path) for path in sorted(WEIGHTS.glob("tiny-lora*")) if path.is_dir())
    loras = tuple(file for file in files if file is not None)
    controlnets = tuple(WEIGHTS / name for name in ZOO_CONTROLNETS)
    return RealModel("zoo", WEIGHTS / "tiny-heavy", controlnets, loras, ZOO_SIDE_PX, ZOO_STEPS, ZOO_GUIDANCE)


@dataclass(frozen=True)
class DiffusersImage:
    """Store one image's seconds, those of reading a LoRA, and those of fusing all LoRAs."""

    seconds: float
    load_s: float = 0.0
    fuse_s: float = 0.0


class DiffusersSide:
    """Generate a model's images by diffusers' pipelines, which read and fuse LoRAs for every image."""

    def __init__(self, model: RealModel) -> None:
        from diffusers import DDIMScheduler, DiffusionPipeline

        self._model = model
        self._base: Any = load_quietly(DiffusionPipeline, model.checkpoint)
        self._base.scheduler = DDIMScheduler.from_config(self._base.scheduler.config)
        self._turns = itertools.cycle(model.loras)
        self._pipeline = cache(self._controlled_by)

    def image(self, controlnets: int, lora_count: int, guidance_scale: float) -> DiffusersImage:
        """Time one image; LoRAs alternate, so that the next image has others."""
        pipeline, names = self._pipeline(controlnets), [f"lora{place}" for place in range(lora_count)]
        began_s = time.monotonic()
        for name in names:
            file = next(self._turns)
            pipeline.load_lora_weights(file.parent, weight_name=file.name, adapter_name=name)
        read_s = time.monotonic()
        if names:
            pipeline.set_adapters(names)
            pipeline.fuse_lora()
        fused_s = time.monotonic()
        self._generate(pipeline, controlnets, guidance_scale)
        seconds = time.monotonic() - began_s
        if names:
            pipeline.unfuse_lora()
            pipeline.unload_lora_weights()
        return DiffusersImage(seconds, (read_s - began_s) / max(lora_count, 1), fused_s - read_s)

    def _controlled_by(self, controlnets: int) -> Any:
        import diffusers

        if not controlnets:
            return self._base
        kind = type(self._base).__name__.replace("Pipeline", "ControlNetPipeline")
        networks = [diffusers.ControlNetModel.from_pretrained(path) for path in self._model.controlnets[:controlnets]]
        pipeline = getattr(diffusers, kind)(**self._base.components, controlnet=networks)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def _generate(self, pipeline: Any, controlnets: int, guidance_scale: float) -> None:
        side = self._model.side_px
        told = {"image": [Image.new("RGB", (side, side))] * controlnets} if controlnets else {}
        sizes = {"num_inference_steps": self._model.steps, "width": side, "height": side}
        with torch.inference_mode():
            generator = torch.Generator().manual_seed(1)
            pipeline("a red circle", guidance_scale=guidance_scale, generator=generator, **told, **sizes)


@dataclass(frozen=True)
class ReferenceImage:
    """Name diffusers' image as "mCnL" with its rows: one without guidance, two with it."""

    asked: str
    rows: int
    image: DiffusersImage


def diffusers_images(
    model: RealModel,
    counts: Collection[tuple[int, int]],
    rounds: int,
    without_guidance: Collection[tuple[int, int]] = (),
) -> list[ReferenceImage]:
    """Time diffusers' pipelines by numbers of ControlNets and LoRAs, with the kinds alternating."""
    side = DiffusersSide(model)
    kinds = [(counted, 2, model.guidance_scale) for counted in counts]
    kinds += [(counted, 1, 1.0) for counted in without_guidance]
    found = []
    for number in range(rounds + 1):
        for (controlnets, loras), rows, scale in kinds:
            image = side.image(controlnets, loras, scale)
            if number:  # skip the first round
                found.append(ReferenceImage(f"{controlnets}C{loras}L", rows, image))
    return found


def reference_seconds(images: Sequence[ReferenceImage]) -> dict[str, list[float]]:
    """Return the seconds of the images with guidance, by "mCnL"."""
    found: dict[str, list[float]] = {}
    for one in images:
        if one.rows == 2:
            found.setdefault(one.asked, []).append(one.image.seconds)
    return found


@dataclass(frozen=True)
class StepTimes:
    """Store the seconds of a step of diffusers' pipeline and what a ControlNet adds to it, by rows; and those of
    reading a LoRA and of fusing all of an image's."""

    step_s: dict[int, float]
    control_s: dict[int, float]
    load_s: float
    fuse_s: float

    @classmethod
    def of(cls, images: Sequence[ReferenceImage], steps: int) -> "StepTimes":
        """Return the medians of images that include "0C0L" and "3C0L" of the same rows, and some with LoRAs."""

        def seconds(asked: str, rows: int) -> float:
            return median(one.image.seconds for one in images if (one.asked, one.rows) == (asked, rows))

        rows = sorted({one.rows for one in images})
        with_loras = [one.image for one in images if not one.asked.endswith("0L")]
        return cls(
            {count: seconds("0C0L", count) / steps for count in rows},
            {count: (seconds("3C0L", count) - seconds("0C0L", count)) / 3 / steps for count in rows},
            median(image.load_s for image in with_loras),
            median(image.fuse_s for image in with_loras),
        )


def zoo_pace(times: StepTimes, starts: Sequence[float]) -> DevicePace:
    """Return the zoo's profile. The encoder has a ControlNet's architecture and takes as long; the decoder takes the
    rest of the step. LoRAs may be late by `starts`, in turns."""
    encode = {rows: times.control_s[rows] for rows in times.step_s}
    decode = {rows: max(step_s - encode[rows], LEAST_DECODER_SHARE * step_s) for rows, step_s in times.step_s.items()}
    # One row takes as long as two where it was not measured.
    one, two = min(times.step_s), max(times.step_s)
    control = PassTimes((encode[one], encode[two]))
    return DevicePace(
        name="zoo",
        family="stable_diffusion",
        steps=ZOO_STEPS,
        guidance_scale=ZOO_GUIDANCE,
        width_px=ZOO_SIDE_PX,
        height_px=ZOO_SIDE_PX,
        latent_channels=8,
        px_per_latent=4,
        text_tokens=77,
        text_width=128,
        pooled_width=0,
        block_channels=(32, 64, 96),
        layers_per_block=1,
        encode=control,
        decode=PassTimes((decode[one], decode[two])),
        picture_s=0.0,
        controlnets=tuple(ControlNetPace(name, control, 0.0, 1) for name in ("edges", "layout", "edges-again")),
        patch_s=times.fuse_s,
        loras=tuple(LoraPace(f"lora-{number}", times.load_s, starts[number % len(starts)]) for number in range(4)),
    )


async def generated_from_base(
    together: ControlledByService,
    case: Case,
    conditions: Sequence[Tensor],
    controlnets: int,
    loras: Sequence[LoraSelection],
    patch_step: int,
) -> tuple[float, pb.AttemptResult]:
    """Generate an image from the base model's weights, which the last image's LoRAs may have changed. Return the
    worker's seconds, from the order to the encoded image, and its answer."""
    await together.generated(ControlledCase(replace(case, steps=1), ()), conditions)
    controlled = ControlledCase(case, (ControlSetting(),) * controlnets)
    result = await together.generated(controlled, conditions, loras, patch_step)
    return sum(timing.duration_ms for timing in result.timings) / 1e3, result


def next_of(turns: "Iterator[Any]", count: int) -> list[Any]:
    """Return the next ones."""
    return list(itertools.islice(turns, count))
