"""Resolve the start of a request: the seed's noise, an image of the request, or a donor from the object store.

An unusable donor costs the saving, never the image: the attempt falls back to noise and gives the reason in a note
`cache skipped: REASON: …`. A missing, corrupt or mismatched object is reported, and its entry healed.
A replay uses the start of the first attempt, or fails.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from pentimento.diffusion.denoising import DenoisingStart, ImageStart, LatentStart, NoiseStart, schedule_for
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import (
    UnknownLatentFormat,
    decode_mask,
    decode_pixels,
    decode_pixels_and_mask,
    latent_from_bytes,
)
from pentimento.diffusion.schedulers import first_img2img_step, nearest_step
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import (
    WITHOUT_REUSE,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    InitImage,
    Route,
)
from pentimento.stores.objects import ObjectStore
from services.unet_worker import metrics
from services.unet_worker.attempts.cache_objects import DonorReader, UnusableDonor

IMAGE_FIELD = "spec.init_image.image"
MASK_FIELD = "spec.init_image.mask"
T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedStart:
    """Hold a start. `saved_steps` counts only steps that the cache saved; `bad_donor_reason` is set for a bad
    object."""

    start: DenoisingStart
    saved_steps: int = 0
    note: str = ""
    bad_donor_reason: str = ""


class StartResolver:
    """Resolve starts; read on the threads of `executor`, with a time limit on the store. Decode on other threads: the
    store's may all be waiting, and a request that needs nothing from the store must not."""

    def __init__(self, model: DiffusionModel, objects: ObjectStore, executor: Executor, timeout_s: float) -> None:
        self._model = model
        self._donors = DonorReader(objects, executor, timeout_s)

    async def resolve(self, spec: GenerationSpec, route: Route) -> ResolvedStart:
        """Return the start of a request. Raises InvalidArgument for an unusable schedule or image of the request, and
        the errors of `UnusableDonor.of_replay` for a replay."""
        schedule_for(self._model, spec)
        if spec.init_image is not None:
            return await self._own_image(spec, spec.init_image)
        try:
            if spec.scheduler in WITHOUT_REUSE and not isinstance(route.start, FromNoise):
                raise UnusableDonor("NOT_RESUMABLE", f"nothing is reused with scheduler {spec.scheduler.value}")
            match route.start:
                case FromLatent():
                    return await self._donor_latent(spec, route.start)
                case FromImage():
                    return await self._donor_image(spec, route.start)
        except UnusableDonor as unusable:
            if route.replay_of:
                raise unusable.of_replay(route) from None
            metrics.SKIPPED_DONORS.inc()
            return ResolvedStart(NoiseStart(), note=str(unusable), bad_donor_reason=unusable.bad_donor_reason)
        return ResolvedStart(NoiseStart())

    def own_first_step(self, spec: GenerationSpec) -> int:
        if spec.init_image is None:
            return 0
        form, strength = self._model.info.noise_form, spec.init_image.strength
        return first_img2img_step(spec.num_inference_steps, strength, form, spec.scheduler)

    async def _own_image(self, spec: GenerationSpec, init_image: InitImage) -> ResolvedStart:
        first_step = self.own_first_step(spec)
        pixels, mask = await asyncio.to_thread(lambda: _pixels_and_mask(init_image, spec))
        # The rule of diffusers' inpainting pipelines, and of no others there.
        from_noise = mask is not None and init_image.strength == 1.0
        return ResolvedStart(ImageStart(pixels, first_step, mask, from_noise=from_noise))

    async def _donor_latent(self, spec: GenerationSpec, start: FromLatent) -> ResolvedStart:
        """Start from a latent (NIRVANA): run the remaining N - K steps; K is the step with the donor's noise level."""
        step = nearest_step(schedule_for(self._model, spec), start.sigma)
        if step is None:
            wanted = f"no step of {spec.num_inference_steps} has noise level {start.sigma:g}"
            raise UnusableDonor("NO_SUCH_LEVEL", wanted)
        data = await self._donors.read(start.latent)
        shape = self._model.latent_shape(spec.width_px, spec.height_px)
        latent = await self._judge(lambda: latent_from_bytes(data, shape))
        # If this schedule has the level elsewhere, the latent is re-noised up to the highest level it allows.
        bridge = replace(start, resume_step=step, renoised_steps=min(start.renoised_steps, step)).bridge
        first_step = step - max(len(bridge) - 1, 0)
        return ResolvedStart(LatentStart(latent, first_step, bridge), first_step)

    async def _donor_image(self, spec: GenerationSpec, start: FromImage) -> ResolvedStart:
        """Start from an image (MoDM): re-noise it to step k, then run the remaining T - k steps."""
        data = await self._donors.read(start.image)
        pixels = await self._judge(lambda: _pixels(data, "donor", spec))
        return ResolvedStart(ImageStart(pixels, start.saved_steps, bridge=start.bridge), start.saved_steps)

    async def _judge(self, read: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(read)
        except UnknownLatentFormat as error:
            # A newer worker wrote it: its bytes are sound, and others can read them.
            raise UnusableDonor("UNKNOWN_LATENT_FORMAT", str(error)) from None
        except (ValueError, InvalidArgument) as error:
            raise UnusableDonor("BAD_DONOR", str(error), object_is_bad=True) from None


def _pixels_and_mask(init_image: InitImage, spec: GenerationSpec) -> tuple[Tensor, Tensor | None]:
    """Return an image and its mask; None for everywhere. Without a mask its transparent parts may change."""
    size = (spec.width_px, spec.height_px)
    if not init_image.mask:
        return decode_pixels_and_mask(init_image.image, IMAGE_FIELD, *size)
    return decode_pixels(init_image.image, IMAGE_FIELD, *size), decode_mask(init_image.mask, MASK_FIELD, *size)


def _pixels(image: bytes, field: str, spec: GenerationSpec) -> Tensor:
    return decode_pixels(image, field, spec.width_px, spec.height_px)
