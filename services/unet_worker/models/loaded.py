"""Hold a real model on a real device."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

import torch

from pentimento.diffusion.engine import StepEngine
from pentimento.diffusion.families import LoadedModelInfo
from pentimento.diffusion.weight_memory import free_weights
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.weights import ComponentWeights
from services.unet_worker.adapters.image_prompts import NO_IP_ADAPTERS, IpAdapters
from services.unet_worker.adapters.lora_shelf import LoraShelf
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.runner import AttemptRunner
from services.unet_worker.device.device_backend import HeldAdapters
from services.unet_worker.models.model_card import default_batch_key
from services.unet_worker.models.warm_up import BatchMeasurement
from services.unet_worker.pairing.servicer import HalfServicer

CAPABILITIES = frozenset(
    {
        Capability.LATENT_START,
        Capability.IMAGE_START,
        Capability.PREVIEW,
        Capability.STEP_BATCHING,
        Capability.CONTROLNET,
    }
)


@dataclass(frozen=True)
class LoadedModel:
    held: HeldModel
    info: LoadedModelInfo
    torch_device: torch.device
    engine: StepEngine
    finisher: Finisher
    runner: AttemptRunner
    store_threads: Executor
    max_batch: int
    loras: LoraShelf
    halves: HalfServicer
    measurement: BatchMeasurement
    # Capabilities of its device, in addition to those of every model.
    device_capabilities: frozenset[Capability] = frozenset()
    networks: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    weights: tuple[ComponentWeights, ...] = ()
    ip_adapters: IpAdapters = NO_IP_ADAPTERS

    @property
    def capabilities(self) -> frozenset[Capability]:
        lacked = {Capability.CONTROLNET} if self.info.computes_alone else set()
        own = (CAPABILITIES - lacked) | self.device_capabilities
        # May change: pairs that were measured to be slower are tried again later.
        # A peer does not receive masks.
        has_halves = not (self.info.sees_mask or self.info.computes_alone)
        may_pair = has_halves and self.engine.pairing_pays(default_batch_key(self.info, self.held))
        pairs = {Capability.LATENT_PARALLEL} if may_pair else set()
        loras = {Capability.LORA} if self.loras.adapters else set()
        own |= {Capability.IP_ADAPTER} if self.ip_adapters.adapters else set()
        return own | pairs | loras | ({Capability.UPLOADED_LORA} if self.loras.takes_uploaded else set())

    @property
    def adapters(self) -> HeldAdapters:
        others = self.ip_adapters
        known, rejected = self.loras.adapters + others.adapters, self.loras.rejected + others.rejected
        resident = (*self.loras.resident_names, *(adapter.name for adapter in others.adapters))
        loras = self.loras
        return HeldAdapters(known, resident, rejected, loras.components, loras.speeds, loras.stored, loras.memory_bytes)

    @property
    def batch_limit(self) -> int:
        return self.engine.limits.limit(default_batch_key(self.info, self.held))

    def limit_batches(self, most: int) -> None:
        """Let at most `most` requests share a step from now on, never more than the limit set at the start; 0 restores
        that limit."""
        # A whole number that the engine reads before each step.
        self.engine.limits.max_batch = min(most or self.max_batch, self.max_batch)

    @property
    def weight_bytes(self) -> int:
        return sum(one.device_bytes for one in self.weights)

    def release(self) -> None:
        """Close it, and free the memory of its weights: no attempt runs. Other memory is freed with its last
        reference."""
        self.close()
        free_weights(self.networks.values())

    def close(self) -> None:
        self.loras.close()
        self.engine.close()
        self.finisher.close()
        self.store_threads.shutdown(wait=False, cancel_futures=True)
