"""Define the backend of a worker's attempts: a model on its device, or an emulated one. Imports no torch, so that an
emulated worker starts without it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pentimento.devices.choices import DeviceMemory
from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.components import HeldComponent, StoredBytes, TierSpeed
from pentimento.domain.execution import ExecuteEvent
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import GenerationSpec, NoiseForm
from pentimento.domain.weights import ComponentWeights, ModelChange, ShortModel
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder


@dataclass(frozen=True)
class HeldAdapters:
    """Hold the LoRAs that a device can use, the names of the loaded ones, and the rejected ones; the tiers of LoRAs
    loaded before, and the measured speeds of the tiers; the files of known ones, and the memory for LoRAs."""

    known: tuple[Adapter, ...] = ()
    resident: tuple[str, ...] = ()
    rejected: tuple[RejectedAdapter, ...] = ()
    components: tuple[HeldComponent, ...] = ()
    speeds: tuple[TierSpeed, ...] = ()
    stored: tuple[StoredBytes, ...] = ()
    memory_bytes: int = 0

    def has(self, name: str, digest: str) -> bool:
        return any(adapter.name == name and adapter.digest == digest for adapter in self.known)

    def first(self, count: int) -> "HeldAdapters":
        """Return at most `count` LoRAs, each name once: loaded ones come first."""
        names: dict[str, Adapter] = {}
        for adapter in self.known:
            names.setdefault(adapter.name, adapter)
        resident = tuple(dict.fromkeys(self.resident))[:count]
        ordered = dict.fromkeys((*(name for name in resident if name in names), *names))
        return HeldAdapters(tuple(names[name] for name in list(ordered)[:count]), resident)


NO_ADAPTERS = HeldAdapters()


class HalfStreams(Protocol):
    """Compute halves of guidance for other workers. On the event loop only."""

    @property
    def open_count(self) -> int: ...

    def answers(self, messages: AsyncIterator[Any], free_count: Callable[[], int]) -> AsyncGenerator[Any, None]:
        """Yield the answers of one stream of PredictHalf. The stream is accepted if `free_count`, called once the
        stream's purpose is known, is above 0."""

    def stop(self) -> None:
        """End all streams: other workers continue their requests without a peer."""


@dataclass(frozen=True)
class ModelChanges:
    """Hold what a device reports of its models: the `weights` of the held one, none between two; the `unloadable` ones,
    which this start of the worker does not try again, among them the `short_models` with more weights than its memory
    can hold; the seconds of the last switch to each, and per gigabyte by the tier of a model's files; the last change,
    or the one in progress; and `step_s`, the seconds of a step of one image of the held model, lately, 0 if unknown."""

    weights: tuple[ComponentWeights, ...] = ()
    unloadable: frozenset[str] = frozenset()
    short_models: tuple[ShortModel, ...] = ()
    load_s: Mapping[str, float] = field(default_factory=dict)
    load_speeds: tuple[TierSpeed, ...] = ()
    change: ModelChange | None = None
    step_s: float = 0.0


class DeviceBackend(Protocol):
    """Describe a device that holds one model or another, as the plan requires. On the event loop; `close` anywhere."""

    @property
    def held(self) -> HeldModel: ...

    @property
    def noise_form(self) -> NoiseForm: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def device(self) -> str:
        """Return the device's name, for people."""

    @property
    def batch_limit(self) -> int:
        """Return the number of requests of the model's default size that share a step now; 0 while it takes none."""

    @property
    def running_count(self) -> int:
        """Return the number of attempts that are being denoised."""

    @property
    def adapters(self) -> HeldAdapters:
        """Return the LoRAs that attempts may request."""

    @property
    def halves(self) -> HalfStreams | None:
        """Return the halves that it computes for other workers; None if it computes none."""

    def memory(self) -> DeviceMemory: ...

    def check(self, spec: GenerationSpec) -> None:
        """Check a request. Raises InvalidArgument for one that this device can never run."""

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        """Load the LoRAs with these names, and `uploaded` ones if it fetches such; return when each is loaded or has
        failed."""

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        """Emit Started and StepProgress, and return the outcome. Raises domain errors; cancelling stops the work at the
        next step."""

    @property
    def target_model(self) -> str:
        """Return the model that it holds, or is about to hold."""

    @property
    def changes(self) -> ModelChanges: ...

    def assign(self, name: str, max_batch: int) -> None:
        """Hold this model, in batches of at most `max_batch`, 0 for the most that fit. Requests that are here finish;
        assigning the current model again calls off a switch before the current one has left the device."""

    def close(self) -> None:
        """Stop the remaining work; takes at most a step."""
