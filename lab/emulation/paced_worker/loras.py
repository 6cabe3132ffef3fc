"""LoRAs that take as long to load as a pace says, and change the one layer that a paced model has."""

import hashlib
import time
from collections.abc import Collection

import torch

from lab.emulation.pace import DevicePace, LoraPace
from lab.emulation.paced_worker.model import ADAPTED_LAYER
from pentimento.diffusion.loras import Lora, LowRankFactors
from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter


class PacedLoras:
    """See `lora_shelf.KnownLoras`. Their digests are those of no real LoRA."""

    def __init__(self, pace: DevicePace, dtype: torch.dtype) -> None:
        self._paces = {paced_digest(lora): lora for lora in pace.loras}
        self.sizes = {lora.name: self._paces[paced_digest(lora)].memory_bytes for lora in pace.loras}
        self._dtype = dtype
        self.adapters = tuple(
            Adapter(
                lora.name,
                AdapterKind.LORA,
                digest,
                pace.family,
                latest_start_fraction=lora.latest_start_fraction,
            )
            for digest, lora in self._paces.items()
        )

    @property
    def rejected(self) -> tuple[RejectedAdapter, ...]:
        """None is: there are no files."""
        return ()

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]:
        """Return the names of LoRAs by their digests."""
        return tuple(adapter.name for adapter in self.adapters if adapter.digest in digests)

    def read(self, digest: str) -> Lora:
        """Take as long as loading it does; return what moves the model's layer by the request's weight."""
        pace = self._paces[digest]
        time.sleep(pace.load_s)
        one = torch.ones(1, 1, dtype=self._dtype)
        return Lora(digest, pace.memory_bytes, {"unet": {ADAPTED_LAYER: LowRankFactors(one, one, 1.0)}})


def paced_digest(lora: LoraPace) -> str:
    """Return what tells a paced LoRA from others."""
    return f"sha256:{hashlib.sha256(f'paced lora {lora}'.encode()).hexdigest()}"
