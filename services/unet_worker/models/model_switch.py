"""Hold one of several models on a real device, as the plan requires: drain, release the old one, load, serve."""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from pentimento.devices.choices import DeviceMemory
from pentimento.diffusion.device import device_memory, device_name
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.execution import ExecuteEvent
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import GenerationSpec, NoiseForm
from pentimento.domain.weights import ComponentWeights, ShortModel
from pentimento.rpc.memory import trim_heap
from services.unet_worker import metrics
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.device.device_backend import (
    NO_ADAPTERS,
    DeviceBackend,
    HalfStreams,
    HeldAdapters,
)
from services.unet_worker.models.loaded import LoadedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwitchingBackend:
    """Serve as the backend between two models: report the previous model, and admit nothing."""

    held: HeldModel
    noise_form: NoiseForm
    capabilities: frozenset[Capability]
    torch_device: torch.device
    batch_limit: int = 0
    running_count: int = 0
    adapters: HeldAdapters = NO_ADAPTERS
    halves: None = None

    @property
    def device(self) -> str:
        return device_name(self.torch_device)

    def memory(self) -> DeviceMemory:
        return device_memory(self.torch_device)

    def check(self, spec: GenerationSpec) -> None:
        """Accept any request: none is admitted, since there are no credits."""

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        """Load nothing: the next model has other LoRAs."""

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        raise ResourceExhausted("NO_CREDIT", "another model is being loaded", retry_after_ms=500)

    def close(self) -> None:
        pass


class ModelSwitch:
    """Switch between models; see `device_backend.DeviceBackend`. `load` returns a model by its name, ready to serve;
    `changed` is called when the held model or the credits change. `short_models` are never loaded."""

    def __init__(
        self,
        first: LoadedModel,
        load: Callable[[str], Awaitable[LoadedModel]],
        changed: Callable[[], None],
        short_models: tuple[ShortModel, ...] = (),
    ) -> None:
        self._backend: DeviceBackend = first
        self._load = load
        self._changed = changed
        self._target = first.held.model
        self.short_models = short_models
        self.unloadable = frozenset(short.model for short in short_models)
        self.load_s: dict[str, float] = {}
        self._max_batch = 0
        self._attempt_count = 0
        self._idle = asyncio.Event()
        self._switch: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> LoadedModel:
        """Return the loaded model. Raises Unavailable between two models."""
        if not isinstance(self._backend, LoadedModel):
            raise Unavailable("LOADING", "another model is being loaded", retry_after_ms=500)
        return self._backend

    @property
    def target_model(self) -> str:
        """Return the model that it holds, or is about to hold."""
        return self._target

    @property
    def held(self) -> HeldModel:
        return self._backend.held

    @property
    def noise_form(self) -> NoiseForm:
        return self._backend.noise_form

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._backend.capabilities

    @property
    def device(self) -> str:
        return self._backend.device

    @property
    def batch_limit(self) -> int:
        return self._backend.batch_limit if self._switch is None else 0

    @property
    def running_count(self) -> int:
        return self._backend.running_count

    @property
    def adapters(self) -> HeldAdapters:
        return self._backend.adapters

    @property
    def halves(self) -> HalfStreams | None:
        return self._backend.halves

    @property
    def weights(self) -> tuple[ComponentWeights, ...]:
        return self._backend.weights if isinstance(self._backend, LoadedModel) else ()

    def memory(self) -> DeviceMemory:
        return self._backend.memory()

    def check(self, spec: GenerationSpec) -> None:
        self._backend.check(spec)

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        await self._backend.prefetch(names, uploaded)

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        self._attempt_count += 1
        try:
            return await self._backend.run(order, emit)
        finally:
            self._attempt_count -= 1
            if not self._attempt_count:
                self._idle.set()

    def assign(self, name: str, max_batch: int) -> None:
        """Hold this model, in batches of at most `max_batch`, 0 for the most that fit. Requests that are here finish
        first; assigning the current model again calls off a switch that has not passed that point. A model that failed
        to load is not tried again."""
        if name in self.unloadable:
            return
        self._target, self._max_batch = name, max_batch
        if isinstance(self._backend, LoadedModel) and self._backend.held.model == name:
            self._stay(self._backend)
        elif self._switch is None:
            self._switch = asyncio.get_running_loop().create_task(self._run_switch(), name="switch")
            self._changed()

    def close(self) -> None:
        """Stop the switch and the backend, from any thread."""
        if self._switch is not None:
            self._switch.get_loop().call_soon_threadsafe(self._switch.cancel)
        self._backend.close()

    def _stay(self, loaded: LoadedModel) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
        loaded.limit_batches(self._max_batch)
        self._changed()

    async def _run_switch(self) -> None:
        try:
            await self._drain()
            began_s = time.monotonic()
            between = await self._let_go()
            loaded = self._backend = await self._next(between)
            self.load_s[loaded.held.model] = time.monotonic() - began_s
        except Exception:
            logger.exception("neither the new model nor the previous one can be loaded; this worker exits")
            signal.raise_signal(signal.SIGTERM)
            return
        self._switch = None
        if self._target == loaded.held.model:
            self._stay(loaded)
        else:
            self.assign(self._target, self._max_batch)

    async def _drain(self) -> None:
        while self._attempt_count:
            self._idle.clear()
            await self._idle.wait()

    async def _let_go(self) -> SwitchingBackend:
        """Release every reference to the model: the next one needs its memory."""
        backend = self.loaded
        self._backend = between = SwitchingBackend(
            backend.held, backend.noise_form, backend.capabilities, backend.torch_device
        )
        # Streams of other workers, which may wait for their next step without a limit.
        try:
            await backend.halves.let_go()
        finally:
            # A thread of the loop's pool would refer to it for a moment longer.
            with ThreadPoolExecutor(1) as thread:
                await asyncio.wrap_future(thread.submit(backend.close))
        del backend
        await _give_memory_back(between.torch_device)
        return between

    async def _next(self, between: SwitchingBackend) -> LoadedModel:
        """Return the target model, or the previous one if that cannot be loaded."""
        wanted, before = self._target, between.held.model
        try:
            return await self._load(wanted)
        except Exception:
            logger.exception("a model could not be loaded; loading the previous one", extra={"model": wanted})
        self.unloadable |= {wanted}
        if self._target == wanted:
            self._target = before
        await _give_memory_back(between.torch_device)
        return await self._load(before)


async def _give_memory_back(device: torch.device) -> None:
    """Free a model's memory, on its device and in this process, once nothing else refers to it."""
    for gauge in (metrics.QUEUE, metrics.RUNNING):  # they refer to its engine
        gauge.set_function(lambda: 0.0)
    gc.collect()
    await asyncio.to_thread(trim_heap)
    if device.type == "cuda":
        torch.cuda.empty_cache()
