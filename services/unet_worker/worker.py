"""The worker as one thing, transport-neutral: nothing until its model is loaded and warm, then attempts."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from dataclasses import dataclass

import torch

from pentimento.diffusion.engine import StepEngine
from pentimento.diffusion.families import ModelInfo, batch_key
from pentimento.domain.errors import Unavailable
from pentimento.domain.execution import WorkerCredits
from pentimento.domain.fleet import Capability, HeldModel
from services.unet_worker.attempts import AttemptBook, StreamEvent
from services.unet_worker.capacity import CapacityFeed
from services.unet_worker.device import DeviceMemory, device_memory, device_name
from services.unet_worker.energy import EnergyMeter
from services.unet_worker.execution import AttemptRunner
from services.unet_worker.finishing import Finisher
from services.unet_worker.model_card import default_batch_key
from services.unet_worker.order import ExecuteOrder
from services.unet_worker.validation import Limits, check_order

CAPABILITIES = frozenset(
    {Capability.LATENT_START, Capability.IMAGE_START, Capability.PREVIEW, Capability.STEP_BATCHING}
)
# One batch that runs and one that is ready: a place that falls free is taken at the next step, without a round trip.
BATCHES_HELD = 2


@dataclass(frozen=True)
class LoadedWorker:
    """Everything there is once the model is loaded."""

    held: HeldModel
    info: ModelInfo
    device: torch.device
    engine: StepEngine
    finisher: Finisher
    runner: AttemptRunner
    store_threads: Executor
    energy: EnergyMeter | None = None

    @property
    def batch_limit(self) -> int:
        """Requests of the model's own size that share a step, as things are now."""
        return self.engine.limits.limit(default_batch_key(self.held))


@dataclass(frozen=True)
class WorkerStatus:
    credits: WorkerCredits
    device: str
    memory: DeviceMemory
    completed_count: int
    failed_count: int


class UnetWorker:
    """On the event loop only. `credit_count` 0 is what the engine can take."""

    def __init__(self, worker_id: str, credit_count: int, orphan_s: float, limits: Limits) -> None:
        self._worker_id = worker_id
        self._fixed_credits = credit_count
        self._limits = limits
        self._loaded: LoadedWorker | None = None
        self.capacity = CapacityFeed(self.credits)
        self.attempts = AttemptBook(
            lambda order, emit: self.loaded.runner.run(order, emit),
            self._credit_count,
            orphan_s,
            self.capacity.changed,
        )

    def serve(self, loaded: LoadedWorker) -> None:
        """From now on attempts are taken."""
        self._loaded = loaded
        self.capacity.changed()

    @property
    def loaded(self) -> LoadedWorker:
        """Raises Unavailable while the model is still being loaded."""
        if self._loaded is None:
            raise Unavailable("WARMING_UP", "the model is still being loaded", retry_after_ms=500)
        return self._loaded

    def _credit_count(self) -> int:
        return self._fixed_credits or BATCHES_HELD * self.loaded.batch_limit

    def credits(self) -> WorkerCredits:
        loaded, running = self.loaded, self.attempts.running()
        denoising = loaded.engine.running_count
        return WorkerCredits(
            worker_id=self._worker_id,
            held=loaded.held,
            credit_count=0 if self.attempts.draining else self._credit_count(),
            running_count=min(denoising, len(running)),
            queued_count=max(len(running) - denoising, 0),
            draining=self.attempts.draining,
            capabilities=CAPABILITIES,
            resident_components=(loaded.held.model,),
            attempts=tuple(held.describe() for held in running),
        )

    def watch_credits(self, frontdoor_id: str, frontdoor_epoch: int) -> AsyncGenerator[WorkerCredits, None]:
        """Raises Unavailable until warm, and Aborted from the moment that a newer epoch of the frontdoor is seen."""
        _ = self.loaded
        return self.capacity.watch(lambda: self.attempts.meet_frontdoor(frontdoor_id, frontdoor_epoch))

    def execute(self, order: ExecuteOrder) -> AsyncGenerator[StreamEvent, None]:
        loaded = self.loaded
        check_order(order, loaded.held, loaded.info.noise_form, self._limits)
        loaded.engine.limits.check(batch_key(order.spec))
        return self.attempts.execute(order)

    def status(self) -> WorkerStatus:
        loaded = self.loaded
        return WorkerStatus(
            self.credits(),
            device_name(loaded.device),
            device_memory(loaded.device),
            self.attempts.completed_count,
            self.attempts.failed_count,
        )

    async def drain(self) -> None:
        """Finishes what runs, takes nothing more."""
        await self.attempts.drain()

    async def close(self) -> None:
        """Stops what is left; takes at most a step."""
        self.attempts.close()
        if self._loaded is not None:
            await asyncio.to_thread(self._loaded.engine.close)
            self._loaded.finisher.close()
            if self._loaded.energy is not None:
                self._loaded.energy.close()
            self._loaded.store_threads.shutdown(wait=False, cancel_futures=True)
