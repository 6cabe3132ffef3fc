"""Hold a real model on a real device, and prepare it before its first request: measure a batch of one, compile if
configured, generate a first image.

Health reports SERVING only when the whole path has run once. Larger batches are measured before that as time permits,
and otherwise while the worker is idle."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from statistics import median

import torch

from pentimento.diffusion.engine import (
    BatchLimits,
    CompiledDenoiser,
    Denoiser,
    Interrupted,
    MemoryBudget,
    MemoryProbe,
    ProbedMemory,
    StepEngine,
    batch_sizes_up_to,
)
from pentimento.diffusion.families import BatchKey, DiffusionModel, LoadedModelInfo
from pentimento.diffusion.weight_memory import free_weights
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import Attempt, FromNoise, Route, promptless
from pentimento.domain.weights import ComponentWeights
from services.unet_worker.adapters.image_prompts import NO_IP_ADAPTERS, IpAdapters
from services.unet_worker.adapters.lora_shelf import LoraShelf
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.runner import AttemptRunner
from services.unet_worker.device_backend import HeldAdapters
from services.unet_worker.remote.halves_servicer import HalfServicer

logger = logging.getLogger(__name__)


_MIB = 2**20
# Passes from the end of the first forward pass until a worker serves: another one and two steps. One image is also
# decoded.
PASSES_TO_COME = 3
# Newest steps in a worker's seconds per step: more than two images of the usual 20, so that a slow one does not count.
RECENT_STEPS = 50


def default_batch_key(info: LoadedModelInfo, held: HeldModel) -> BatchKey:
    return BatchKey(held.default_width_px, held.default_height_px, info.is_guided(held.default_guidance_scale))


@dataclass(frozen=True)
class KnownSteps:
    """Hold the measurements of a model: a process that loads it again continues with them. `step_s`: seconds of a step
    of one image; `reused_step_share`: of one with reused deep features ÷ of a whole one."""

    probed: ProbedMemory
    step_s: float
    reused_step_share: float = 0.0


class BatchMeasurement:
    """Find the number of requests of `key` that fit the budget, and set it in `limits`. On the engine's thread.

    Until a second batch size was measured the limit is a bound from the first: it may be too low, never too high.
    `known`: from an earlier load. `other_bytes`: the weights of another model on the device, which leaves.
    """

    def __init__(
        self,
        model: DiffusionModel,
        denoiser: Denoiser,
        limits: BatchLimits,
        key: BatchKey,
        budget_bytes: int,
        limit_s: float = math.inf,
        monotonic: Callable[[], float] = time.monotonic,
        known: KnownSteps | None = None,
        other_bytes: int = 0,
    ) -> None:
        self._model = model
        self._denoiser = denoiser
        self._limits = limits
        self._key = key
        self._budget_bytes = budget_bytes
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._is_known = known is not None
        self._probe = self._new_probe(known.probed if known is not None else None, other_bytes)
        limits.reserved_bytes = other_bytes
        self._seconds_each = 0.0
        # Seconds of a step of one image, once measured: before it serves, then as the median of the newest steps.
        self.step_s = known.step_s if known is not None else 0.0
        self._newest_s: deque[float] = deque(maxlen=RECENT_STEPS)

    def before_serving(self) -> None:
        """Measure, and compile for every batch that fits, regardless of the time. Raises InvalidArgument, naming the
        budget, if not even one image of the model's default size fits."""
        compiled = self._denoiser if isinstance(self._denoiser, CompiledDenoiser) else None
        if self._is_known:
            self._set_budget()
            self._limits.check(self._key)
        else:
            self._measure_within(self._limit_s if compiled is None else math.inf)
        if compiled is None:
            return
        sizes = batch_sizes_up_to(self._limits.limit(self._key))
        logger.info("compiling for batches of %s", _listed(sizes))
        compiled.warm(self._key, sizes)
        if not self._is_known:
            self._probe = self._new_probe(None, self._probe.other_bytes)  # graphs keep memory of their own
            self._measure_within(math.inf)

    @property
    def known(self) -> KnownSteps:
        return KnownSteps(self._probe.probed, self.step_s)

    def took_step(self, size: BatchKey, seconds: float, *, alone: bool) -> None:
        """Count a step of requests; see `EngineObserver.took_step`. One image's step takes at most a batch's."""
        if size == self._key and (alone or seconds < self.step_s):
            self._newest_s.append(seconds)
            if len(self._newest_s) == RECENT_STEPS:
                self.step_s = median(self._newest_s)

    def share_device(self, other_bytes: int) -> None:
        """Leave this part of the budget to another model; 0 once it is alone."""
        self._limits.reserved_bytes = other_bytes
        if not other_bytes:
            self._probe.other_bytes = 0

    def when_idle(self, wanted: Callable[[], bool]) -> bool:
        """Measure the remaining batches until `wanted`; return whether any remain."""
        while self._probe.pending and self._next_may_fit():
            try:
                if wanted():
                    return True
                self._measure_next(wanted)
            except Interrupted:
                return True
        return bool(self._probe.pending)

    def _new_probe(self, begun: ProbedMemory | None, other_bytes: int) -> MemoryProbe:
        begun = begun or ProbedMemory(batch_sizes_up_to(self._limits.max_batch))
        return MemoryProbe(self._model, self._denoiser.predict, self._key, begun, other_bytes)

    def _set_budget(self) -> None:
        memory = self._probe.memory()
        self._limits.set_budget(None if memory is None else MemoryBudget(self._budget_bytes, memory))

    def _next_may_fit(self) -> bool:
        """Return whether the next batch can be measured now: next to another model only one that surely fits."""
        return not self._limits.reserved_bytes or self._limits.limit(self._key) >= self._probe.pending[0]

    def _measure_within(self, limit_s: float) -> None:
        began_at = self._monotonic()
        logger.info("measuring a step of one image of %dx%d", self._key.width_px, self._key.height_px)
        self._probe.measure_decoder()
        forward_began_at = self._monotonic()
        decoder_s = forward_began_at - began_at
        self._measure_next(half_done=lambda: self._tell_first(self._monotonic() - forward_began_at, decoder_s))
        self._limits.check(self._key)
        while self._probe.pending and self._next_may_fit():
            next_s = self._seconds_each * self._probe.pending[0]
            if self._monotonic() - began_at + next_s > limit_s:
                break
            self._measure_next()
        if self._probe.pending:
            left = self._seconds_each * sum(self._probe.pending)
            sizes = _listed(self._probe.pending)
            logger.info("batches of %s are measured while idle, in about %.0f s", sizes, left)

    def _tell_first(self, seconds: float, decoder_s: float) -> None:
        """Log the estimated time until the worker serves, because people wait."""
        left_s = PASSES_TO_COME * seconds + decoder_s
        logger.info("a step of one image takes %.1f s; serving in about %.0f s", seconds, left_s)

    def _measure_next(
        self, wanted: Callable[[], bool] | None = None, half_done: Callable[[], None] = lambda: None
    ) -> None:
        size, began_at = self._probe.pending[0], self._monotonic()
        half_at = began_at

        def halfway() -> None:
            nonlocal half_at
            half_at = self._monotonic()
            half_done()

        self._probe.measure_next(wanted, halfway)
        ended_at = self._monotonic()
        seconds = ended_at - began_at
        self._seconds_each = seconds / size
        # Only the second pass counts: the first one includes one-time work.
        self.step_s = ended_at - half_at if size == 1 else self.step_s
        self._settle(size, seconds)

    def _settle(self, size: int, seconds: float) -> None:
        memory = self._probe.memory()
        if memory is None:
            logger.warning("memory cannot be measured here: batches are bounded by --max-batch only")
            return
        self._limits.set_budget(MemoryBudget(self._budget_bytes, memory))
        if size > 1 and self._probe.pending and self._limits.limit(self._key) < self._probe.pending[0]:
            # It would not fit, or not together with another model.
            self._probe.pending = self._probe.pending if self._limits.reserved_bytes else ()
        logger.info(
            "a batch of %d was measured in %.1f s; %sbatches of %d fit",
            size,
            seconds,
            "at least " if self._probe.pending else "",
            self._limits.limit(self._key),
            extra={"budget_mib": self._budget_bytes // _MIB, "weights_mib": int(memory.fixed_bytes) // _MIB},
        )


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


async def warm_up(runner: AttemptRunner, held: HeldModel) -> None:
    """Run two guided steps at the model's default size, decode and encode. Raises the errors of a request."""
    size_px = held.default_width_px, held.default_height_px
    spec = promptless(held.model, size_px, min(2, held.max_steps), 2.0, held.schedulers[0])
    logger.info("generating a first image")
    route = Route("warm-up", FromNoise(), held.model, held.model_digest)
    attempt = Attempt("warm-up", 0, 0, "", 0, "")
    await runner.run(ExecuteOrder(attempt, spec, route, held.worker_generation), lambda event: None)


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
