"""Read the images of requests with IP-Adapters."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.image_prompts import ImagePrompt
from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.generation import GenerationSpec, ImagePromptSelection
from pentimento.images.decoding import decode

if TYPE_CHECKING:
    from pentimento.diffusion.image_prompts import IpAdapter

# Prompts of recent images: 3 MB each for SDXL in half precision.
KEPT_PROMPTS = 16
# Runs a function on the engine's thread.
Call = Callable[[Callable[[], ImagePrompt]], "Future[ImagePrompt]"]


@dataclass(frozen=True)
class IpAdapters:
    held: "Mapping[str, IpAdapter]"
    adapters: tuple[Adapter, ...] = ()
    rejected: tuple[RejectedAdapter, ...] = ()


NO_IP_ADAPTERS = IpAdapters({})


class ImagePrompts:
    """Read the images of requests with IP-Adapters, on the engine's thread between two steps. Prompts of recent images
    are kept. On the event loop only."""

    def __init__(self, model: DiffusionModel, served: IpAdapters, call: Call) -> None:
        self._model = model
        self._held = served.held
        self._call = call
        self._kept: OrderedDict[tuple[str, bytes, bool], ImagePrompt] = OrderedDict()

    async def of(self, spec: GenerationSpec) -> tuple[ImagePrompt, ...]:
        guided = self._model.info.is_guided(spec.guidance_scale)
        found = []
        for place, selection in enumerate(spec.image_prompts):
            prompt = await self._prompt(selection, f"spec.image_prompts[{place}].image", guided=guided)
            found.append(replace(prompt, scale=selection.scale))
        return tuple(found)

    async def _prompt(self, selection: ImagePromptSelection, field: str, *, guided: bool) -> ImagePrompt:
        key = (selection.digest, hashlib.sha256(selection.image).digest(), guided)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        adapter = self._held[selection.digest]
        pixels = await asyncio.to_thread(decode, selection.image, field, adapter.encoder.pixels)
        prompt = await asyncio.wrap_future(self._call(lambda: adapter.prompt(pixels, 1.0, guided=guided)))
        self._kept[key] = prompt
        while len(self._kept) > KEPT_PROMPTS:
            self._kept.popitem(last=False)
        return prompt
