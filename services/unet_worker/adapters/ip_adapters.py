"""Serve the IP-Adapters of a directory: load each that fits the model, and read the images of requests."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from pentimento.diffusion.checkpoint import check_inside
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.image_prompts import ImagePrompt
from pentimento.diffusion.image_prompts import (
    ENCODER_FOLDER,
    IpAdapter,
    PromptImageEncoder,
    check_ip_adapter,
    load_image_encoder,
)
from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter, adapter_name_for
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import GenerationSpec, ImagePromptSelection
from pentimento.images.decoding import decode
from services.unet_worker.adapters.lora_directory import MAX_MESSAGE_LENGTH, MAX_REJECTED

logger = logging.getLogger(__name__)

# Prompts of recent images: 3 MB each for SDXL in half precision.
KEPT_PROMPTS = 16
# Runs a function on the engine's thread.
Call = Callable[[Callable[[], ImagePrompt]], "Future[ImagePrompt]"]


@dataclass(frozen=True)
class IpAdapters:
    held: Mapping[str, IpAdapter]
    adapters: tuple[Adapter, ...] = ()
    rejected: tuple[RejectedAdapter, ...] = ()


NO_IP_ADAPTERS = IpAdapters({})


def open_ip_adapters(directory: Path, model: DiffusionModel) -> IpAdapters:
    """Load the IP-Adapters in a directory and its folders, each with the image encoder next to it. One that does
    not fit the model is logged and rejected."""
    held: dict[str, IpAdapter] = {}
    known, rejected = [], []
    digests: dict[Path, str] = {}
    encoders: dict[Path, PromptImageEncoder] = {}
    for name, path in _named(directory):
        try:
            check_inside(directory, [path])
            file = check_ip_adapter(path, model.cross_attentions)
            if file.encoder not in encoders:
                encoders[file.encoder] = load_image_encoder(file.encoder, model.device, model.dtype)
                digests[file.encoder] = file.encoder_digest()
            digest = file.digest(digests[file.encoder])
            held[digest] = IpAdapter(path, encoders[file.encoder], model.cross_attentions, model.device, model.dtype)
        except PentimentoError as error:
            logger.warning("the IP-Adapter %s is rejected: %s", name, error)
            said = error.message[:MAX_MESSAGE_LENGTH]
            rejected.append(RejectedAdapter(name, AdapterKind.IP_ADAPTER, error.reason, said))
        else:
            known.append(Adapter(name, AdapterKind.IP_ADAPTER, digest, model.info.family, model.info.model_digest))
    logger.info("%d IP-Adapters for the model", len(known))
    return IpAdapters(held, tuple(known), tuple(rejected[:MAX_REJECTED]))


def _named(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files with their registry names, each name once."""
    folders = (directory, *(path for path in sorted(directory.iterdir()) if path.is_dir()))
    files = [
        path for folder in folders if folder.name != ENCODER_FOLDER for path in sorted(folder.glob("*.safetensors"))
    ]
    named: dict[str, Path] = {}
    for path in files:
        name = adapter_name_for(path.stem)
        if named.setdefault(name, path) is not path:
            logger.warning("%s is not served: %s has its name", path, named[name])
    yield from named.items()


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
