"""Read LoRAs that were uploaded to the object store, once a request brings their reference."""

import threading
from collections import OrderedDict

import torch

from pentimento.diffusion.loras import BaseLayers, Lora
from pentimento.diffusion.loras.files import LoraFile
from pentimento.diffusion.loras.reading import lora_of
from pentimento.domain.generation import LoraSelection, ObjectReference
from pentimento.files.signed_entries import TrustedEntries
from pentimento.stores.components.store import LocalComponents
from pentimento.stores.errors import StoreFull, StoreUnavailable

# References are small; a worker that forgets one receives it again with the next request.
MAX_KNOWN = 4096


class UploadedLoras:
    """Read uploaded LoRAs from the component store, on any thread. `trusted` rejects LoRAs by their entries; None for
    a worker without public keys."""

    def __init__(
        self,
        components: LocalComponents,
        base: BaseLayers,
        dtype: torch.dtype,
        model_digest: str = "",
        trusted: TrustedEntries | None = None,
    ) -> None:
        self._components = components
        self._base = base
        self._dtype = dtype
        self._model_digest = model_digest
        self._trusted = trusted
        self._lock = threading.Lock()
        # Name and reference by digest, the last requested ones at the end.
        self._asked: OrderedDict[str, tuple[str, ObjectReference]] = OrderedDict()

    def ask(self, lora: LoraSelection) -> None:
        """Remember a request's LoRA; ignore one that is not in the object store. Raises FailedPrecondition, as
        `TrustedEntries.check_lora`, also for a LoRA in memory: its entry names it for this request."""
        if lora.object is None:
            return
        if self._trusted is not None:
            self._trusted.check_lora(lora, self._model_digest, self._base.family)
        with self._lock:
            self._asked.pop(lora.digest, None)
            self._asked[lora.digest] = (lora.name, lora.object)
            while len(self._asked) > MAX_KNOWN:
                self._asked.popitem(last=False)

    def name_of(self, digest: str) -> str | None:
        """Return the name under which a LoRA was last requested; None for one that is not in the object store."""
        with self._lock:
            asked = self._asked.get(digest)
        return asked[0] if asked is not None else None

    def read(self, digest: str) -> Lora:
        """Return the LoRA. Raises BadLora for one that does not fit the model, KeyError for one that was not requested,
        CorruptComponent, and the object store's errors."""
        with self._lock:
            name, reference = self._asked[digest]
        return lora_of(self._file(name, reference), self._base, self._dtype, digest)

    def is_kept(self, digest: str) -> bool:
        """Return whether the local disk has the component."""
        return any(one.digest == digest for one in self._components.store.held())

    def _file(self, name: str, reference: ObjectReference) -> LoraFile:
        try:
            data, found = self._components.store.read(reference, self._components.remote)
        except (StoreFull, StoreUnavailable):
            # A full or missing disk costs only the next fetch.
            return LoraFile(name, self._components.objects.get(reference))
        return LoraFile(name, data, sha256=found.sha256)
