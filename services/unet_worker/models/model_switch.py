"""Hold one of several models on a real device, as the plan requires.

The next model is read, and loaded where the device has room for both, while the current one generates. Without room for
it in host memory, the current one leaves first.
"""

import asyncio
import gc
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from pentimento.devices.choices import DeviceMemory
from pentimento.diffusion.device import device_memory, device_name
from pentimento.diffusion.engine.probe import is_out_of_memory
from pentimento.diffusion.host_memory import host_buffers
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import PentimentoError, ResourceExhausted, Unavailable
from pentimento.domain.execution import ExecuteEvent
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import GenerationSpec, NoiseForm
from pentimento.domain.reasons import Reason
from pentimento.domain.weights import ModelChange, ShortModel, SwitchWay
from pentimento.rpc.memory import trim_heap
from pentimento.service.components import LoadSpeeds
from services.unet_worker import metrics
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.device_backend import NO_ADAPTERS, HalfStreams, HeldAdapters, ModelChanges
from services.unet_worker.models.checkpoint_loading import Placement
from services.unet_worker.models.loaded import LoadedModel
from services.unet_worker.models.loader import CheckpointLoader

logger = logging.getLogger(__name__)


class ModelSwitch:
    """Switch between models; see `device_backend.DeviceBackend`. `changed` is called when the held model or the credits
    change. `short_models` are never loaded."""

    def __init__(
        self,
        first: LoadedModel,
        loader: CheckpointLoader,
        changed: Callable[[], None],
        short_models: tuple[ShortModel, ...] = (),
    ) -> None:
        # None between two models. The description of the former one is still reported then.
        self._current: LoadedModel | None = None
        self._hold(first)
        self._device = first.torch_device
        # The former model, while its requests end and the next one serves.
        self._leaving: LoadedModel | None = None
        self._loader = loader
        self._changed = changed
        self._target = first.held.model
        self._short_models = short_models
        self.unloadable = frozenset(short.model for short in short_models)
        self.load_s: dict[str, float] = {}
        self._speeds = LoadSpeeds()
        self.change: ModelChange | None = None
        self._max_batch = 0
        self._attempt_counts = Counter[str]()
        self._news = asyncio.Event()
        self._empties = False
        self._switch: asyncio.Task[None] | None = None
        metrics.QUEUE.set_function(lambda: sum(one.engine.waiting_count for one in self._models()))
        metrics.RUNNING.set_function(lambda: self.running_count)

    @property
    def loaded(self) -> LoadedModel:
        if self._current is None:
            raise Unavailable("LOADING", "another model is being loaded", retry_after_ms=500)
        return self._current

    @property
    def target_model(self) -> str:
        """Return the model that it holds, or is about to hold."""
        return self._target

    @property
    def held(self) -> HeldModel:
        return self._held

    @property
    def noise_form(self) -> NoiseForm:
        return self._noise_form

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities if self._current is None else self._current.capabilities

    @property
    def device(self) -> str:
        return device_name(self._device)

    @property
    def batch_limit(self) -> int:
        if self._current is None or (self._empties and self._target != self.held.model):
            return 0
        return self._current.batch_limit

    @property
    def running_count(self) -> int:
        return sum(one.engine.running_count for one in self._models())

    @property
    def adapters(self) -> HeldAdapters:
        return NO_ADAPTERS if self._current is None else self._current.adapters

    @property
    def halves(self) -> HalfStreams | None:
        return None if self._current is None else self._current.halves

    @property
    def changes(self) -> ModelChanges:
        current, speeds = self._current, self._speeds.speeds
        weights, step_s = ((), 0.0) if current is None else (current.weights, current.measurement.step_s)
        return ModelChanges(weights, self.unloadable, self._short_models, self.load_s, speeds, self.change, step_s)

    def memory(self) -> DeviceMemory:
        return device_memory(self._device)

    def check(self, spec: GenerationSpec) -> None:
        """Check a request; between two models none is admitted, since there are no credits."""
        if self._current is not None:
            self._current.engine.limits.check(self._current.info.batch_key(spec))

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        if self._current is not None:
            # No variable here: it would hold the model while a file is read.
            await self._current.loras.prefetch(names, uploaded)

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        model, leaving = order.route.model, self._leaving
        # An attempt that was admitted just before its model began to leave.
        backend = leaving if leaving is not None and leaving.held.model == model else self._current
        if backend is None:
            raise ResourceExhausted("NO_CREDIT", "another model is being loaded", retry_after_ms=500)
        self._attempt_counts[model] += 1
        try:
            return await backend.runner.run(order, emit)
        finally:
            self._attempt_counts[model] -= 1
            self._news.set()

    def assign(self, name: str, max_batch: int) -> None:
        """Hold this model, in batches of at most `max_batch`, 0 for the most that fit. Requests that are here finish;
        assigning the current model again calls off a switch before the current one has left the device. A model that
        failed to load is not tried again."""
        if name in self.unloadable:
            return
        self._target, self._max_batch = name, max_batch
        self._news.set()
        if self._current is not None and self.held.model == name:
            self._current.limit_batches(max_batch)
        elif self._switch is None:
            self._switch = asyncio.get_running_loop().create_task(self._run_switch(), name="switch")
        self._changed()

    def close(self) -> None:
        if self._switch is not None:
            self._switch.get_loop().call_soon_threadsafe(self._switch.cancel)
        for model in self._models():
            model.close()

    def _hold(self, loaded: LoadedModel) -> None:
        self._current, self._held, self._noise_form = loaded, loaded.held, loaded.info.noise_form
        self._capabilities = loaded.capabilities

    def _models(self) -> list[LoadedModel]:
        return [one for one in (self._current, self._leaving) if one is not None]

    async def _run_switch(self) -> None:
        try:
            while (name := self._target) != self.held.model:
                await self._switch_to(name)
        except Exception:
            logger.exception("neither the new model nor the previous one can be loaded; this worker exits")
            signal.raise_signal(signal.SIGTERM)
            return
        self._switch = None
        self._changed()

    async def _switch_to(self, name: str) -> None:
        """Hold the model, unless it cannot be loaded or is not wanted any more once it was read."""
        tiers, began_s = await self._loader.tiers(name), time.monotonic()
        try:
            beside, staged = await self._prepared(name)
        except Exception as error:
            if not _lacks_memory(error):
                return self._refuse(name)
            logger.warning("no memory for a second model: the current one leaves first", extra={"model": name})
            self.change = self.change and replace(self.change, way=SwitchWay.UNLOAD_FIRST)
            beside = staged = None
        if self._target != name:
            logger.info("a model that was read is not wanted any more", extra={"model": name})
            self._leaving, beside = beside, None
            return await self._release_leaving()
        if beside is not None:
            self._speeds.note(tiers, time.monotonic() - began_s)
            return await self._take_over(beside, began_s)
        await self._replace(name, staged, time.monotonic() - began_s)
        if self.held.model == name:
            self._speeds.note(tiers, self.load_s[name])

    async def _prepared(self, name: str) -> tuple[LoadedModel | None, Placement | None]:
        """Return the model, loaded next to the current one or read into host memory, as memory allows."""
        current = self.loaded
        self.change = change = await self._loader.change_to(name, current)
        logger.info("%s is to replace %s: %s", name, current.held.model, change.way.value)
        if change.way is SwitchWay.STAGED:
            return None, await self._loader.stage(name)
        if change.way is SwitchWay.UNLOAD_FIRST:
            return None, None
        current.measurement.share_device(change.weight_bytes)
        try:
            return await self._loader.load(name, beside=current), None
        finally:
            current.measurement.share_device(0)

    async def _take_over(self, loaded: LoadedModel, began_s: float) -> None:
        """Serve the model from now on, and release the former one once its requests have ended."""
        self._leaving = former = self.loaded
        await self._serve(loaded, began_s)
        # Attempts that were admitted with the former model have begun by then.
        await asyncio.sleep(0)
        model = former.held.model
        del former
        await self._until(lambda: not self._attempt_counts[model])
        await self._release_leaving()
        loaded.measurement.share_device(0)

    async def _replace(self, name: str, staged: Placement | None, read_s: float) -> None:
        """Finish the current model's requests, release it, and load the next one, unless another is wanted then."""
        self._empties = True
        self._changed()
        try:
            await self._until(lambda: self._target != name or not self._attempt_counts[self.held.model])
            if self._target == name:
                began_s = time.monotonic() - read_s
                await self._let_go()
                await self._serve(await self._load_or_return(name, staged), began_s)
        finally:
            self._empties = False

    async def _serve(self, loaded: LoadedModel, began_s: float) -> None:
        self._hold(loaded)
        self.load_s[loaded.held.model] = time.monotonic() - began_s
        loaded.limit_batches(self._max_batch if loaded.held.model == self._target else 0)
        self._changed()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def _let_go(self) -> None:
        """Release every reference to the model: the next one needs its memory."""
        self._capabilities = self.capabilities
        self._leaving, self._current = self.loaded, None
        await self._release_leaving()

    async def _release_leaving(self) -> None:
        leaving, self._leaving = self._leaving, None
        if leaving is None:
            return
        # Streams of other workers, which may wait for their next step without a limit.
        try:
            await leaving.halves.let_go()
        finally:
            # A thread of the loop's pool would refer to it for a moment longer.
            with ThreadPoolExecutor(1) as thread:
                await asyncio.wrap_future(thread.submit(leaving.release))
        del leaving
        # A collection holds up the next model's steps, where it serves.
        await _give_memory_back(self._device, collects=self._current is None)

    async def _load_or_return(self, name: str, staged: Placement | None) -> LoadedModel:
        """Return the model, or the former one if it cannot be loaded."""
        try:
            return await self._loader.load(name, staged)
        except Exception:
            self._refuse(name)
        await _give_memory_back(self._device, collects=True)
        return await self._loader.load(self.held.model)

    def _refuse(self, name: str) -> None:
        """Note a model that cannot be loaded; the former one serves. In an exception's handler."""
        logger.exception("a model could not be loaded; the former one serves", extra={"model": name})
        self.unloadable |= {name}
        if self._target == name:
            self._target = self.held.model


async def _give_memory_back(device: torch.device, *, collects: bool) -> None:
    """Give a model's freed memory back, of its device and of this process; with a collection, also that of cycles."""
    if collects:
        gc.collect()
    else:
        await asyncio.to_thread(host_buffers(is_read_by_device=False).drop_idle)  # no load follows that would use them
    await asyncio.to_thread(trim_heap)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _lacks_memory(error: Exception) -> bool:
    reason = error.reason if isinstance(error, PentimentoError) else None
    return is_out_of_memory(error) or reason == Reason.DEVICE_OUT_OF_MEMORY
