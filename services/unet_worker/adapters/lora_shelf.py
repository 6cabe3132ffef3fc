"""The LoRAs of a worker: which there are, and those of a request on their way to the engine."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from pentimento.diffusion.loras import Lora
from pentimento.diffusion.loras.loading import LoadingLoras, LoraLoader
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import GenerationSpec, Route

logger = logging.getLogger(__name__)


class KnownLoras(Protocol):
    """LoRAs that a worker's model can be painted with: those of a directory, or paced ones."""

    @property
    def adapters(self) -> tuple[Adapter, ...]: ...

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]: ...

    def read(self, digest: str) -> Lora: ...


class LoraShelf:
    """A directory of LoRAs and their loader. Without a directory there are none."""

    def __init__(self, directory: KnownLoras | None, memory_bytes: int, arrived: Callable[[], None]) -> None:
        """`arrived` is called on the loader's threads whenever a load has ended."""
        self._directory = directory
        self._loader = LoraLoader(directory.read, memory_bytes, arrived) if directory is not None else None

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Those that requests may name."""
        return self._directory.adapters if self._directory is not None else ()

    @property
    def resident_names(self) -> tuple[str, ...]:
        """Those that need not be loaded first."""
        if self._directory is None or self._loader is None:
            return ()
        return self._directory.names_of(self._loader.resident)

    def source(self, spec: GenerationSpec, route: Route) -> LoadingLoras | None:
        """Begin to load what a request wants, and return where it comes from; None where it wants none. It waits at the
        route's step. A replay has them from that step on and no sooner: its picture may have waited for them."""
        if not spec.loras or self._loader is None:
            return None
        wanted = [(lora.digest, lora.scale) for lora in spec.loras]
        return self._loader.ask(wanted, route.lora_patch_step, exactly=bool(route.replay_of))

    async def prefetch(self, names: Collection[str]) -> None:
        """Load those of its LoRAs that have these names, as far as they stay within the memory for LoRAs. Returns when
        each is here or was found not to be loadable, which the log says."""
        wanted = [adapter.digest for adapter in self.adapters if adapter.name in names]
        if self._loader is None or not wanted:
            return
        loads = [asyncio.wrap_future(load) for load in self._loader.begin(wanted)]
        for ended in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(ended, PentimentoError):
                logger.warning("a LoRA was not loaded ahead of need: %s", ended.message)

    def close(self) -> None:
        """Begin no more loads."""
        if self._loader is not None:
            self._loader.close()
