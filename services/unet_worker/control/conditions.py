"""Encode conditioning images as latents, for families with ControlNets that see latents (SD3)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pentimento.diffusion.controlnets.edges import edges
from pentimento.diffusion.engine import StepEngine
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.images import condition_of_size
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.generation import GenerationSpec, Preprocessor
from services.unet_worker.control.remote_control import RemoteControlNet, naming_controlnet
from services.unet_worker.control.replicas import ControlNetReplicas, lost

_SEE_LATENTS = ("stable_diffusion_3",)
ASK_TIMEOUT_S = 5.0


def controlnets_see_latents(family: str) -> bool:
    return family in _SEE_LATENTS


class ConditionEncoder:
    """Encode with the base model's autoencoder, on the engine's thread between two steps. On the event loop only."""

    def __init__(self, model: DiffusionModel, engine: StepEngine, replicas: ControlNetReplicas) -> None:
        self._model = model
        self._engine = engine
        self._replicas = replicas
        # Whether the latent is without the autoencoder's shift, by the ControlNet's name and digest.
        self._unshifted: dict[tuple[str, str], bool] = {}

    async def encoded(
        self, controlnets: Sequence[RemoteControlNet], spec: GenerationSpec
    ) -> tuple[RemoteControlNet, ...]:
        """Return the ControlNets; those for latents receive theirs (rows, channels, height, width), with a row for each
        half of the guidance. Noise is drawn from the request's seed, for one ControlNet after the other.

        Raises InvalidArgument for an invalid image or one of another size than the request's, Unavailable
        (CONTROLNET_LOST) if no replica reports the input of a ControlNet.
        """
        if not controlnets_see_latents(self._model.info.family):
            return tuple(controlnets)
        generator = torch.Generator().manual_seed(spec.seed)
        found = []
        for place, controlnet in enumerate(controlnets):
            with naming_controlnet(place):
                found.append(await self._with_latent(controlnet, spec, generator))
        return tuple(found)

    async def _with_latent(
        self, controlnet: RemoteControlNet, spec: GenerationSpec, generator: torch.Generator
    ) -> RemoteControlNet:
        selection, rows = controlnet.selection, 2 if self._model.info.is_guided(spec.guidance_scale) else 1
        unshifted = await self._is_unshifted(controlnet)
        image, size = selection.conditioning_image, (spec.width_px, spec.height_px)
        if selection.preprocessor is Preprocessor.DEPTH:
            limit = "must be edges or empty: the depth model is with ControlNets that see images"
            raise InvalidArgument.of("controlnet.preprocessor", limit)
        pixels = await asyncio.to_thread(condition_of_size, image, *size)
        if selection.preprocessor is Preprocessor.EDGES:
            pixels = await asyncio.to_thread(edges, pixels)

        def encode() -> Tensor:
            return self._model.condition(pixels, rows, generator, unshifted=unshifted)

        encoded = await asyncio.wrap_future(self._engine.call(encode))
        # The service sees only the latent.
        seen = replace(selection, conditioning_image=b"", preprocessor=None)
        return replace(controlnet, selection=seen, encoded=encoded)

    async def _is_unshifted(self, controlnet: RemoteControlNet) -> bool:
        name, digest = controlnet.selection.name, controlnet.selection.digest
        if (name, digest) not in self._unshifted:
            self._unshifted[(name, digest)] = await self._ask(controlnet)
        return self._unshifted[(name, digest)]

    async def _ask(self, controlnet: RemoteControlNet) -> bool:
        name, digest = controlnet.selection.name, controlnet.selection.digest
        for address in controlnet.addresses:
            try:
                status = await self._replicas.at(address).client.status(ASK_TIMEOUT_S)
            except PentimentoError:
                continue  # the next one may know
            # A restarted replica may have other weights under that name.
            found = [info.unshifted for info in status.controlnets if info.name == name and digest in ("", info.digest)]
            if found:
                return found[0]
        raise lost(name)
