"""What a worker runs attempts on: a model on its device, or an emulated one. Imports no torch, so that an emulated
worker starts without it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.execution import ExecuteEvent
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import GenerationSpec, NoiseForm
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder


@dataclass(frozen=True)
class DeviceMemory:
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class HeldAdapters:
    """The LoRAs that a device can paint with, the names of those that need not be loaded first, and those that were
    found and cannot be used."""

    known: tuple[Adapter, ...] = ()
    resident: tuple[str, ...] = ()
    rejected: tuple[RejectedAdapter, ...] = ()

    def has(self, name: str, digest: str) -> bool:
        """Return whether one of that name and digest is known."""
        return any(adapter.name == name and adapter.digest == digest for adapter in self.known)

    def first(self, count: int) -> "HeldAdapters":
        """Return at most `count` of them, each name once: those that need not be loaded first before the others."""
        names: dict[str, Adapter] = {}
        for adapter in self.known:
            names.setdefault(adapter.name, adapter)
        resident = tuple(dict.fromkeys(self.resident))[:count]
        ordered = dict.fromkeys((*(name for name in resident if name in names), *names))
        return HeldAdapters(tuple(names[name] for name in list(ordered)[:count]), resident)


NO_ADAPTERS = HeldAdapters()


class HalfStreams(Protocol):
    """Halves of guidance that a device computes for other workers. On the event loop only."""

    @property
    def open_count(self) -> int: ...

    def answers(self, messages: AsyncIterator[Any], free_count: Callable[[], int]) -> AsyncGenerator[Any, None]:
        """Yield the answers of one stream of PredictHalf, for which there is a place where `free_count`, asked when it
        is known what the stream is for, is above 0."""
        ...

    def stop(self) -> None:
        """End all: their pictures are painted by their own workers alone."""
        ...


class DeviceBackend(Protocol):
    """A device with the model that it holds. Used on the event loop only; `close` on any thread."""

    @property
    def held(self) -> HeldModel: ...

    @property
    def noise_form(self) -> NoiseForm: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def device(self) -> str:
        """Its name, for people."""
        ...

    @property
    def batch_limit(self) -> int:
        """Requests of the model's own size that share a step, as things are now; 0 while it takes none."""
        ...

    @property
    def running_count(self) -> int:
        """Attempts that are being denoised."""
        ...

    @property
    def adapters(self) -> HeldAdapters:
        """The LoRAs that attempts may ask for."""
        ...

    @property
    def halves(self) -> HalfStreams | None:
        """The halves that it computes for other workers; None where it computes none."""
        ...

    def memory(self) -> DeviceMemory: ...

    def check(self, spec: GenerationSpec) -> None:
        """Raises InvalidArgument for a picture that this device can never paint."""
        ...

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        """Loads those of its LoRAs that have these names, and `uploaded` ones where it fetches such; returns when they
        are here, or cannot be."""
        ...

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        """Emits Started and StepProgress, returns the rest. Raises domain errors; cancelling stops the work at the next
        step."""
        ...

    def close(self) -> None:
        """Stops what is left; takes at most a step."""
        ...


class PlannedBackend(DeviceBackend, Protocol):
    """A device that can hold one model or another, as the plan says."""

    @property
    def target_model(self) -> str:
        """The model that it holds, or is about to hold."""
        ...

    @property
    def unloadable(self) -> frozenset[str]:
        """The models that could not be loaded, which this start of the worker does not try again."""
        ...

    def assign(self, name: str, max_batch: int) -> None:
        """Hold this model, in batches of at most that many, 0 for as many as fit. What is here is painted first, and
        until the other one is loaded nothing new is taken; a switch that has not got beyond that is called off by its
        own model."""
        ...
