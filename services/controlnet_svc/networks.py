"""List the ControlNets of a registry, and hold those of this replica: the popular ones stay on the device, the others
are loaded on demand."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from pentimento.diffusion.checkpoint import BadCheckpoint, component_files
from pentimento.diffusion.controlnets import PLAIN, ControlNet, ControlNetForm, load_controlnet, open_controlnet
from pentimento.diffusion.engine.probe import is_out_of_memory
from pentimento.diffusion.weight_memory import entries_of, loaded_files
from pentimento.domain.adapters import Adapter
from pentimento.domain.components import Loadable, StoredBytes, Tier, TierSpeed
from pentimento.domain.errors import Internal, NotFound, PentimentoError, ResourceExhausted
from pentimento.files.adapter_registry import RegisteredAdapter
from pentimento.files.file_sums import FileSums
from pentimento.policies.residency import ResidentSet
from pentimento.service.components import LoadSpeeds
from services.controlnet_svc import metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShelvedNetwork:
    """Describe a servable ControlNet: its memory on the device, its loader (blocking; any thread), and whether its
    condition is a latent, with or without the autoencoder's shift."""

    adapter: Adapter
    memory_bytes: int
    load: Callable[[], ControlNet]
    takes_latents: bool = False
    unshifted: bool = False


class NetworkShelf:
    """Load and evict ControlNets, on the event loop only, one load at a time."""

    def __init__(
        self,
        networks: Mapping[str, ShelvedNetwork],
        budget_bytes: int,
        changed: Callable[[], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._networks = dict(networks)
        self._too_large = {name for name, one in networks.items() if one.memory_bytes > budget_bytes}
        for name in sorted(self._too_large):
            logger.warning("a ControlNet exceeds the memory budget and is not served: %s", name)
        self._resident = ResidentSet(budget_bytes)
        self.budget_bytes = budget_bytes
        self._speeds = LoadSpeeds()
        self._loaded: dict[str, ControlNet] = {}
        self._in_use: Counter[str] = Counter()
        self._load_s: dict[str, float] = {}
        self._changed = changed
        self._now_s = now_s
        self._loading = asyncio.Lock()
        # ControlNets that the plan places here: they are evicted last.
        self._placed = frozenset[str]()
        self.load_count = 0
        self.eviction_count = 0

    @property
    def networks(self) -> tuple[ShelvedNetwork, ...]:
        return tuple(self._networks[name] for name in sorted(self._networks.keys() - self._too_large))

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return tuple(shelved.adapter for shelved in self.networks)

    @property
    def stored(self) -> tuple[StoredBytes, ...]:
        return tuple(StoredBytes(one.adapter.name, Tier.DISK, one.memory_bytes) for one in self.networks)

    @property
    def load_speeds(self) -> tuple[TierSpeed, ...]:
        return self._speeds.speeds

    @property
    def resident(self) -> tuple[str, ...]:
        """Return the ControlNets on the device, the most valuable first."""
        return self._resident.names

    def find(self, name: str) -> ShelvedNetwork:
        if name not in self._networks:
            raise NotFound("UNKNOWN_CONTROLNET", f"no ControlNet {name[:100]!r} is served here")
        return self._networks[name]

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[ControlNet]:
        """Hold a ControlNet on the device during the block, and count a use. Raises NotFound; ResourceExhausted
        (NO_DEVICE_MEMORY) while those in use leave no room; errors of its files."""
        shelved = self.find(name)
        # From here on it is in use: loads that run in between do not evict it.
        self._in_use[name] += 1
        try:
            self._resident.use(self._loadable(shelved))
            yield await self._have(shelved)
        finally:
            self._in_use[name] -= 1
            self._changed()

    async def place(self, names: Sequence[str]) -> None:
        """Load the ControlNets that a plan places here, and evict them after all others. Unknown ones are skipped, and
        so are failed loads: a stream that needs one receives the error."""
        here = [name for name in names if name in self._networks]
        self._placed = frozenset(here)
        for name in here:
            with suppress(PentimentoError):
                await self.prefetch([name])

    async def prefetch(self, names: Sequence[str]) -> None:
        """Prefetch ControlNets that fit without evicting any in use. Raises NotFound."""
        for shelved in [self.find(name) for name in names]:
            try:
                await self._have(shelved)
            except ResourceExhausted:
                logger.info("no room for a prefetched ControlNet")

    async def _have(self, shelved: ShelvedNetwork) -> ControlNet:
        name = shelved.adapter.name
        if name in self._loaded:
            return self._loaded[name]
        await self._loading.acquire()
        if name in self._loaded:
            self._loading.release()
            return self._loaded[name]
        # A separate task: the requesting stream may be cancelled while the thread reads on. Until the task has ended
        # it holds the lock and its room, and the loaded ControlNet is ready for the next stream.
        load = asyncio.create_task(self._load(shelved), name="controlnet-load")
        load.add_done_callback(self._ended)
        return await asyncio.shield(load)

    def _ended(self, load: "asyncio.Task[ControlNet]") -> None:
        self._loading.release()
        if not load.cancelled():
            load.exception()  # waiting streams receive it; there may be none

    async def _load(self, shelved: ShelvedNetwork) -> ControlNet:
        name = shelved.adapter.name
        self._make_room(shelved)
        began_s = self._now_s()
        try:
            network = await asyncio.to_thread(shelved.load)
        except Exception as error:
            typed = _typed(name, error)
            logger.warning("a ControlNet does not load: %s", typed.reason)
            raise typed from None
        self._load_s[name] = self._now_s() - began_s
        self._speeds.note({Tier.DISK: shelved.memory_bytes}, self._load_s[name])
        self._resident.add(self._loadable(shelved))
        self._loaded[name] = network
        self.load_count += 1
        metrics.LOADS.inc()
        metrics.LOAD_SECONDS.observe(self._load_s[name])
        self._tell()
        return network

    def _make_room(self, shelved: ShelvedNetwork) -> None:
        in_use = {name for name, count in self._in_use.items() if count > 0}
        loadable = self._loadable(shelved)
        leaving = self._resident.leaving_for(loadable, in_use | self._placed)
        if leaving is None:
            leaving = self._resident.leaving_for(loadable, in_use)
        if leaving is None:
            message = "the ControlNets in use leave no room on the device"
            raise ResourceExhausted("NO_DEVICE_MEMORY", message, retry_after_ms=200)
        for name in leaving:
            self._resident.remove(name)
            del self._loaded[name]
            self.eviction_count += 1
            metrics.EVICTIONS.inc()
        self._tell()

    def _loadable(self, shelved: ShelvedNetwork) -> Loadable:
        """Return a ControlNet with its last load time, or an estimate from its size before the first load."""
        guess_s = shelved.memory_bytes / 1e9
        return Loadable(shelved.adapter.name, shelved.memory_bytes, self._load_s.get(shelved.adapter.name, guess_s))

    def _tell(self) -> None:
        metrics.RESIDENT_BYTES.set(self._resident.used_bytes)
        self._changed()


def _typed(name: str, error: Exception) -> PentimentoError:
    """Convert an error for the requesting stream: another replica may have the ControlNet, or room for it."""
    if isinstance(error, PentimentoError):
        return error
    if is_out_of_memory(error):
        message = f"the device has no room for the ControlNet {name}"
        return ResourceExhausted("NO_DEVICE_MEMORY", message, retry_after_ms=200)
    return Internal("CONTROLNET_FAILED", f"the ControlNet {name} does not load ({type(error).__name__})")


def shelved_networks(
    registered: Mapping[str, RegisteredAdapter],
    device: torch.device,
    dtype: torch.dtype,
    form: ControlNetForm = PLAIN,
    sums: FileSums | None = None,
    held: Callable[[str, Callable[[], ControlNet]], ControlNet] = lambda name, load: load(),
) -> Mapping[str, ShelvedNetwork]:
    """Return a registry's ControlNets as the shelf loads them, those in `sums` without hashing; nothing is loaded yet.
    `held` calls a loader by a ControlNet's name, with its files on the local disk."""
    shelved = {name: _shelved(one, device, dtype, form, sums) for name, one in registered.items()}
    return {name: replace(one, load=partial(held, name, one.load)) for name, one in shelved.items()}


def _shelved(
    registered: RegisteredAdapter, device: torch.device, dtype: torch.dtype, form: ControlNetForm, sums: FileSums | None
) -> ShelvedNetwork:
    """Return a ControlNet. Errors of its directory are reported when it is loaded, to the stream that needs it."""
    adapter, directory = registered.adapter, registered.directory
    load = partial(load_controlnet, directory, device, dtype, adapter.digest, form, sums)
    found = ShelvedNetwork(adapter, weight_bytes(directory, dtype), load)
    try:
        checkpoint = open_controlnet(directory)
    except BadCheckpoint:
        return found
    adapter = replace(adapter, control_kind_count=checkpoint.kind_count)
    return replace(found, adapter=adapter, takes_latents=checkpoint.takes_latents, unshifted=checkpoint.unshifted)


def with_depth(networks: Mapping[str, ShelvedNetwork], depth_digest: str) -> Mapping[str, ShelvedNetwork]:
    """Return the ControlNets as those of a replica with a depth model: all but those for latents can use it, since
    their images are preprocessed by the worker."""
    return {
        name: one if one.takes_latents else replace(one, adapter=replace(one.adapter, depth_digest=depth_digest))
        for name, one in networks.items()
    }


def weight_bytes(directory: Path, dtype: torch.dtype) -> int:
    """Return the size of a ControlNet's weights on the device, in `dtype`; that of its files if it cannot be loaded."""
    try:
        files = loaded_files(directory, component_files(directory, directory), dtype)
        return sum(math.prod(entry.shape) * dtype.itemsize for entry in entries_of(files).values())
    except (PentimentoError, ValueError, OSError):
        return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
