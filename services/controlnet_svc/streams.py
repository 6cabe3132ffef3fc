"""Hold streams of residuals, transport-neutral: opened within the credits, then one step after the other."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.controlnets import ControlNet, ControlSetting, ControlStep, place_of_kind
from pentimento.diffusion.controlnets.depth import DepthModel
from pentimento.diffusion.families.model import Conditioning, ControlResiduals, DenoiserInput
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, Unavailable
from pentimento.domain.generation import Attempt, ControlNetSelection, Preprocessor
from pentimento.domain.reasons import Reason
from pentimento.tensors.cuda import WIRE_DTYPES, tensor_over
from pentimento.tensors.lines import LineListener
from pentimento.tensors.step_server import Deliver
from pentimento.wire.tensors import WireTensor, size_of
from services.controlnet_svc import metrics
from services.controlnet_svc.compute.conditions import EmbeddedConditions
from services.controlnet_svc.compute.thread import ComputeThread, StreamStep
from services.controlnet_svc.networks import NetworkShelf


@dataclass(frozen=True)
class ResidualLayer:
    """Describe one tensor of every answer: its name in bindings, and its dims."""

    layer: str
    dims: tuple[int, ...]


def named_tensors(residuals: ControlResiduals) -> Sequence[tuple[str, Tensor]]:
    """Return residuals by name: the down blocks, shallow to deep, the mid block, a transformer's blocks."""
    mid = residuals.mid_block_residual
    return (
        *((f"down_block_{index}", tensor) for index, tensor in enumerate(residuals.down_block_residuals)),
        *((("mid_block", mid),) if mid is not None else ()),
        *((f"block_{index}", tensor) for index, tensor in enumerate(residuals.block_residuals)),
    )


def are_of(residuals: ControlResiduals, layers: Sequence[ResidualLayer]) -> bool:
    """Return whether residuals have exactly these layers, or the first ones while others are in flight."""
    named = named_tensors(residuals)
    return len(named) + residuals.awaited_count == len(layers) and all(
        name == layer.layer and tensor.shape == layer.dims for (name, tensor), layer in zip(named, layers, strict=False)
    )


def layers_of(residuals: ControlResiduals) -> tuple[ResidualLayer, ...]:
    return tuple(ResidualLayer(name, tuple(tensor.shape)) for name, tensor in named_tensors(residuals))


MAX_STEPS = 10_000
MAX_SIDE_PX = 8192
# Limit of remembered residual shapes: callers choose the sizes.
KEPT_SIZES = 1024


@dataclass(frozen=True)
class StreamOrder:
    """Hold OpenStream in domain values. `latent_dims` are (channels, height, width); `encoded` is the conditioning
    image as latents (1, channels, height, width) if the base model's VAE encoded it, None if the image itself is
    given."""

    attempt: Attempt
    controlnet: ControlNetSelection
    base_model_digest: str
    base_model_family: str
    controlnet_digest: str
    conditioning: Conditioning
    width_px: int
    height_px: int
    step_count: int
    latent_dims: tuple[int, int, int]
    encoded: Tensor | None = None
    alone: bool = False

    @property
    def row_count(self) -> int:
        return self.conditioning.states.shape[0]


@dataclass
class OpenedStream:
    """Hold a ControlNet and a credit for a stream. `layers` are every answer's tensors."""

    order: StreamOrder
    digest: str
    layers: tuple[ResidualLayer, ...]
    dtype: torch.dtype
    _network: ControlNet = field(repr=False)
    _compute: ComputeThread = field(repr=False)
    _conditioning: Conditioning = field(repr=False)
    _embedded: Tensor = field(repr=False)
    _kind: int = 0

    @property
    def listener(self) -> LineListener:
        """Return the listener of the steps of a line: the thread that computes them."""
        return self._compute.waiting

    def submit(
        self, step_index: int, timestep: float, latents: WireTensor, deliver: Deliver[Any], in_parts: bool
    ) -> "Future[Any]":
        """Queue a step, on one thread at a time; `deliver` takes its residuals, scaled, on the compute thread, and its
        result settles the future. With `in_parts`, `deliver` is also called earlier with the residuals so far, if the
        ControlNet computes them one after the other. Raises Unavailable once the service stops."""
        network, dtype = self._network, WIRE_DTYPES[self.dtype]

        def told(residuals: ControlResiduals) -> Any:
            if not are_of(residuals, self.layers):
                raise Internal("CONTROLNET_FAILED", "the ControlNet's residuals are not those of its first pass")
            named = named_tensors(residuals)
            return deliver(named, [size_of(dtype, layer.dims) for layer in self.layers[len(named) :]])

        inputs = _inputs(tensor_over(latents).to(network.device, network.dtype), timestep, self._conditioning)
        setting = ControlSetting(self.order.controlnet.conditioning_scale)
        control = ControlStep(inputs, self._embedded, setting, self._kind)
        return self._compute.submit(StreamStep(self, network, control, told, self.order.alone, in_parts))


class ControlNets:
    def __init__(
        self,
        shelf: NetworkShelf,
        compute: ComputeThread,
        credits: int,
        changed: Callable[[], None],
        depth: DepthModel | None = None,
    ) -> None:
        self.shelf = shelf
        self.compute = compute
        self.credits = credits
        self.open_count = 0
        self.draining = False
        self._changed = changed
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._layers: dict[tuple[object, ...], tuple[ResidualLayer, ...]] = {}
        self._conditions = EmbeddedConditions(compute, depth)

    @property
    def credit_count(self) -> int:
        return 0 if self.draining else self.credits

    @asynccontextmanager
    async def opened(self, order: StreamOrder) -> AsyncIterator[OpenedStream]:
        """Hold a stream open during the block: its ControlNet on the device, its image embedded.

        Raises errors of the order before anything is allocated for it: Unavailable while it drains, ResourceExhausted
        beyond the credits, NotFound, FailedPrecondition for another base model or digest, InvalidArgument for anything
        outside its limits.
        """
        self._take_credit()
        try:
            self._check(order)
            async with self.shelf.hold(order.controlnet.name) as network:
                yield await self._embed(order, network)
        finally:
            self._count_streams(-1)
            if not self.open_count:
                self._all_closed.set()

    async def drain(self) -> None:
        """Accept no further streams, and wait until the open ones have ended."""
        self.draining = True
        self._changed()
        await self._all_closed.wait()

    def _take_credit(self) -> None:
        if self.draining:
            raise Unavailable(Reason.DRAINING, "the ControlNet service is stopping", retry_after_ms=500)
        if self.open_count >= self.credits:
            message = f"at most {self.credits} streams may be open"
            raise ResourceExhausted("NO_CREDIT", message, retry_after_ms=100)
        self._count_streams(1)
        self._all_closed.clear()

    def _count_streams(self, change: int) -> None:
        self.open_count += change
        metrics.OPEN_STREAMS.set(self.open_count)
        self._changed()

    def _check(self, order: StreamOrder) -> None:
        adapter = self.shelf.find(order.controlnet.name).adapter
        if order.controlnet_digest not in ("", adapter.digest):
            message = f"{adapter.name} is {adapter.digest} here, not {order.controlnet_digest[:100]!r}"
            raise FailedPrecondition("CONTROLNET_DIGEST_MISMATCH", message)
        _check_depth_model(order.controlnet, adapter)
        if not adapter.changes(order.base_model_digest, order.base_model_family):
            message = f"{adapter.name} is not for the model {order.base_model_digest[:100]!r}"
            raise FailedPrecondition("WRONG_BASE_MODEL", message)
        for name, value, most in (
            ("width_px", order.width_px, MAX_SIDE_PX),
            ("height_px", order.height_px, MAX_SIDE_PX),
            ("step_count", order.step_count, MAX_STEPS),
        ):
            if not 1 <= value <= most:
                raise InvalidArgument.of(f"open.{name}", f"must be between 1 and {most}, got {value}")
        ControlSetting(order.controlnet.conditioning_scale).check("open.controlnet")

    async def _embed(self, order: StreamOrder, network: ControlNet) -> OpenedStream:
        device, dtype, texts = network.device, network.dtype, order.conditioning
        pooled, sizes = (None if part is None else part.to(device, dtype) for part in (texts.pooled, texts.sizes))
        conditioning = Conditioning(texts.states.to(device, dtype), pooled, sizes)
        embedded = await self._embedded(order, network)
        layers = await self._layers_of(order, network, conditioning, embedded)
        digest = self.shelf.find(order.controlnet.name).adapter.digest
        kind = place_of_kind(order.controlnet.kind, network.info.kind_count)
        return OpenedStream(order, digest, layers, dtype, network, self.compute, conditioning, embedded, kind)

    async def _embedded(self, order: StreamOrder, network: ControlNet) -> Tensor:
        """Return the embedded condition. Latents, with the noise of one request, are not cached; images are, since they
        repeat."""
        rows = order.row_count
        if order.encoded is not None:
            return await self._conditions.of_pixels(network, order.encoded, rows)
        asked, size_px = order.controlnet, (order.width_px, order.height_px)
        return await self._conditions.of_image(network, asked.conditioning_image, *size_px, rows, asked.preprocessor)

    async def _layers_of(
        self, order: StreamOrder, network: ControlNet, conditioning: Conditioning, embedded: Tensor
    ) -> tuple[ResidualLayer, ...]:
        """Return the layers of this ControlNet and size: known after the first stream, at the cost of a forward
        pass."""
        key = (order.controlnet.name, order.row_count, order.latent_dims)
        found = self._layers.get(key)
        if found is None:
            latents = torch.zeros(order.row_count, *order.latent_dims, device=network.device, dtype=network.dtype)
            inputs = ControlStep(_inputs(latents, 1.0, conditioning), embedded, ControlSetting())
            step = StreamStep(key, network, inputs, layers_of, alone=True)
            found = self._layers[key] = await asyncio.wrap_future(self.compute.submit(step))
            while len(self._layers) > KEPT_SIZES:
                del self._layers[next(iter(self._layers))]
        return found


def _check_depth_model(asked: ControlNetSelection, adapter: Adapter) -> None:
    if asked.preprocessor is not Preprocessor.DEPTH:
        return
    if not adapter.depth_digest or asked.preprocessor_digest not in ("", adapter.depth_digest):
        message = f"the depth model is {adapter.depth_digest or 'none'} here, not {asked.preprocessor_digest[:100]!r}"
        raise FailedPrecondition("DEPTH_MODEL_MISMATCH", message)


def _inputs(latents: Tensor, timestep: float, conditioning: Conditioning) -> DenoiserInput:
    timesteps = torch.full((latents.shape[0],), timestep, dtype=torch.float32, device=latents.device)
    return DenoiserInput(latents, timesteps, conditioning)
