"""Hold the LoRAs of a worker, and load those of a request for the engine."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from pentimento.diffusion.loras import Lora
from pentimento.diffusion.loras.loading import LoadingLoras, LoraLoader
from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.components import ComponentRule, HeldComponent, StoredBytes, Tier, TierSpeed
from pentimento.domain.errors import FailedPrecondition, PentimentoError
from pentimento.domain.generation import GenerationSpec, LoraSelection, Route
from pentimento.policies.components import Utility

if TYPE_CHECKING:
    from services.unet_worker.adapters.uploaded_loras import UploadedLoras
import threading
from collections import OrderedDict

from pentimento.domain.fleet import MAX_TOLD_COUNT
from pentimento.service.components import LoadSpeeds
from services.unet_worker import metrics

logger = logging.getLogger(__name__)


class KnownLoras(Protocol):
    """Describe the LoRAs that a worker's model can use: those of a directory, or paced ones."""

    @property
    def adapters(self) -> tuple[Adapter, ...]: ...

    @property
    def rejected(self) -> tuple[RejectedAdapter, ...]: ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of their files, by name."""

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]: ...

    def read(self, digest: str) -> Lora: ...


class LoraShelf:
    """Hold a directory of LoRAs, the uploaded LoRAs, and their loader. Without either it has no LoRAs."""

    def __init__(
        self,
        directory: KnownLoras | None,
        memory_bytes: int,
        arrived: Callable[[], None],
        uploaded: "UploadedLoras | None" = None,
        rule: ComponentRule | None = None,
    ) -> None:
        """Create the shelf. `arrived` is called on the loader's threads whenever a load has ended. `rule`: of what
        stays in memory, by Eq. 10 unless given."""
        self._directory = directory
        self._uploaded = uploaded
        is_served = directory is not None or uploaded is not None
        self._measured = MeasuredLoads()
        self.memory_bytes = memory_bytes if is_served else 0
        # The files of the directory's LoRAs.
        self.stored = tuple(
            StoredBytes(name, Tier.DISK, size_bytes)
            for name, size_bytes in (directory.sizes if directory else {}).items()
        )
        self._loader = LoraLoader(self._read, memory_bytes, arrived, rule or Utility())

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return self._directory.adapters if self._directory is not None else ()

    @property
    def rejected(self) -> tuple[RejectedAdapter, ...]:
        return self._directory.rejected if self._directory is not None else ()

    @property
    def resident_names(self) -> tuple[str, ...]:
        digests = self._loader.resident
        own = self._directory.names_of(digests) if self._directory is not None else ()
        named = (self._uploaded.name_of(digest) for digest in digests) if self._uploaded is not None else ()
        return (*own, *(name for name in named if name is not None and name not in own))

    @property
    def components(self) -> tuple[HeldComponent, ...]:
        """Return the LoRAs loaded before with their tiers: host memory, or the disk that keeps them."""
        return self._measured.components(self._loader.resident)

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        return self._measured.speeds

    @property
    def takes_uploaded(self) -> bool:
        return self._uploaded is not None

    def source(self, spec: GenerationSpec, route: Route) -> LoadingLoras | None:
        """Begin to load a request's LoRAs, and return their source; None if it has none. The source waits at the
        route's step. A replay uses them from exactly that step: the first attempt may have waited for them. Raises
        FailedPrecondition for an uploaded LoRA without a valid entry."""
        if not spec.loras:
            return None
        if self._uploaded is not None:
            for lora in spec.loras:
                self._uploaded.ask(lora)
        wanted = [(lora.digest, lora.scale) for lora in spec.loras]
        return self._loader.ask(wanted, route.lora_patch_step, exactly=bool(route.replay_of))

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        """Load the LoRAs with these names, and `uploaded` ones if it fetches such, while the memory for LoRAs has room:
        into a full one a prefetch does not pay (benchmarks/eviction_components.py). Return when each is loaded or has
        failed; failures are logged. They are loaded one at a time: the loader's other thread is left to requests."""
        wanted = [adapter.digest for adapter in self.adapters if adapter.name in names]
        if self._uploaded is not None:
            for adapter in uploaded:
                try:
                    self._uploaded.ask(
                        LoraSelection(adapter.name, 1.0, adapter.digest, adapter.object, adapter.signed_entry)
                    )
                except FailedPrecondition as error:
                    logger.warning("a LoRA was not prefetched: %s", error.message)
                    continue
                wanted.append(adapter.digest)
        for digest in wanted:
            if not self._loader.has_room:
                return
            load = asyncio.wrap_future(self._loader.begin([digest], ahead=True)[0])
            load.add_done_callback(_say_if_failed)
            # Unlike an awaited future, it continues if the caller is cancelled: requests may wait for it, too.
            await asyncio.wait([load])

    def close(self) -> None:
        self._loader.close()

    def _read(self, digest: str) -> Lora:
        began_s = time.monotonic()
        if self._uploaded is not None and self._uploaded.name_of(digest) is not None:
            tier = Tier.DISK if self._uploaded.is_kept(digest) else Tier.STORE
            lora = self._uploaded.read(digest)
            kept_in = Tier.DISK if self._uploaded.is_kept(digest) else Tier.STORE
        else:
            assert self._directory is not None
            tier = kept_in = Tier.DISK
            lora = self._directory.read(digest)
        self._measured.note(digest, tier, lora.size_bytes, time.monotonic() - began_s, kept_in)
        return lora


def _say_if_failed(load: "asyncio.Future[Lora]") -> None:
    error = None if load.cancelled() else load.exception()
    if isinstance(error, PentimentoError):
        logger.warning("a LoRA was not prefetched: %s", error.message)


class MeasuredLoads:
    """Average the seconds per gigabyte of loads, by tier, and keep the tier and size of the last loaded components. On
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._speeds = LoadSpeeds()
        # Where each component can be loaded from next time, and its bytes; the last loaded ones at the end.
        self._known: OrderedDict[str, tuple[Tier, int]] = OrderedDict()

    def note(self, digest: str, tier: Tier, size_bytes: int, seconds: float, kept_in: Tier) -> None:
        """Count a load from `tier`; `kept_in` has the component from now on."""
        metrics.LORA_LOAD_SECONDS.labels(tier.value).observe(seconds)
        self._speeds.note({tier: size_bytes}, seconds)
        with self._lock:
            self._known.pop(digest, None)
            self._known[digest] = (kept_in, size_bytes)
            while len(self._known) > MAX_TOLD_COUNT:
                self._known.popitem(last=False)

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        return self._speeds.speeds

    def components(self, resident: Collection[str]) -> tuple[HeldComponent, ...]:
        """Return the last loaded components; `resident` ones are in host memory."""
        with self._lock:
            known = tuple(self._known.items())
        return tuple(
            HeldComponent(digest, Tier.HOST if digest in resident else tier, size_bytes)
            for digest, (tier, size_bytes) in known
        )
