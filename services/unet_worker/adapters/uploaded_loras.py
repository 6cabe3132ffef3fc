"""Fetch LoRAs from the object store when a request brings their reference, and store them on disk within a bound."""

import contextlib
import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

import torch

from pentimento.diffusion.loras import BadLora, BaseLayers, Lora
from pentimento.diffusion.loras.files import LoraFile, open_lora
from pentimento.diffusion.loras.reading import lora_of
from pentimento.domain.generation import LoraSelection, ObjectReference
from pentimento.stores.objects import ObjectStore

# References are small; a worker that forgets one receives it again with the next request.
MAX_KNOWN = 4096
_SUFFIX = ".safetensors"


class UploadedLoras:
    """Read uploaded LoRAs, on any thread. Files are named after their digests, and are validated and digested at each
    read: the directory's content is never trusted."""

    def __init__(
        self, objects: ObjectStore, directory: Path, max_bytes: int, base: BaseLayers, dtype: torch.dtype
    ) -> None:
        """Create the directory. Raises OSError if that fails."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._objects = objects
        self._directory = directory
        self._max_bytes = max_bytes
        self._base = base
        self._dtype = dtype
        self._lock = threading.Lock()
        # Name and reference by digest, the last requested ones at the end.
        self._asked: OrderedDict[str, tuple[str, ObjectReference]] = OrderedDict()

    def ask(self, lora: LoraSelection) -> None:
        """Remember a request's LoRA; ignore one that is not in the object store."""
        if lora.object is None:
            return
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
        """Return the LoRA: from disk, or from the store if the disk has another file or none. Raises BadLora for one
        that does not fit the model, KeyError for one that was not requested, and the store's errors."""
        with self._lock:
            name, reference = self._asked[digest]
        path = self._directory / f"{digest.removeprefix('sha256:')}{_SUFFIX}"
        try:
            kept = open_lora(path)
        except (BadLora, OSError):
            kept = None
        if kept is None or kept.digest != digest:
            kept = LoraFile(path.name, self._objects.get(reference))
            self._keep(path, kept.data)
        with contextlib.suppress(OSError):
            os.utime(path)
        return lora_of(LoraFile(name, kept.data), self._base, self._dtype, digest)

    def _keep(self, path: Path, data: bytes) -> None:
        """Store a LoRA on disk. A full or missing disk costs only the next fetch."""
        if len(data) > self._max_bytes:
            return
        with contextlib.suppress(OSError), self._lock:
            self._make_room(len(data))
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                file.write(data)
            Path(file.name).replace(path)

    def _make_room(self, size_bytes: int) -> None:
        """Remove the least recently used files, and half-written ones of a killed worker."""
        files = sorted(self._directory.iterdir(), key=lambda file: file.stat().st_mtime)
        kept = []
        for file in files:
            if file.suffix == _SUFFIX:
                kept.append(file)
            else:
                file.unlink(missing_ok=True)
        left_bytes = sum(file.stat().st_size for file in kept) + size_bytes - self._max_bytes
        for file in kept:
            if left_bytes <= 0:
                break
            left_bytes -= file.stat().st_size
            file.unlink(missing_ok=True)
