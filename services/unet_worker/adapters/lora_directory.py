"""The LoRAs of a directory: by its registry.json, or each of its safetensors files and folders by name."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import check_inside, digest_directory, read_json_object
from pentimento.diffusion.loras import BadLora, BaseLayers, Lora, read_lora
from pentimento.domain.adapters import Adapter, AdapterKind, is_adapter_name
from pentimento.domain.errors import PentimentoError
from pentimento.policies.lora_bounds import read_lora_bounds

logger = logging.getLogger(__name__)

_FILE_NAMES = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors")
REGISTRY = "registry.json"


@dataclass(frozen=True)
class LoraPlace:
    """A LoRA's file, and what a registry says of it; empty where it says nothing."""

    name: str
    path: Path
    directory: Path | None = None
    digest: str = ""
    base_digest: str = ""
    licence: str = ""


@dataclass(frozen=True)
class KnownLora:
    """One that fits the model: as the fleet is told of it, and its file."""

    adapter: Adapter
    path: Path


class LoraDirectory:
    """The LoRAs that a worker's model can be painted with. Names are looked up, never joined to a path."""

    def __init__(self, known: Sequence[KnownLora], base: BaseLayers, dtype: torch.dtype) -> None:
        self.adapters = tuple(one.adapter for one in known)
        self._paths = {one.adapter.digest: one.path for one in known}
        self._base = base
        self._dtype = dtype

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]:
        """Return the names of those with one of these digests."""
        return tuple(adapter.name for adapter in self.adapters if adapter.digest in digests)

    def read(self, digest: str) -> Lora:
        """Return the LoRA, read from its file anew. Raises BadLora where the file is another one by now."""
        return read_lora(self._paths[digest], self._base, self._dtype, digest)


def open_lora_directory(
    directory: Path, model_digest: str, base: BaseLayers, dtype: torch.dtype, bounds: Mapping[str, float]
) -> LoraDirectory:
    """Return the LoRAs of `directory` that change the model, each read once: what does not fit or is not what the
    registry expects is logged and left out. `bounds` are shares of the schedule by digest."""
    known = []
    for place in _places(directory):
        if place.base_digest not in ("", model_digest):
            continue
        try:
            digest = _judged(place, base, dtype)
        except PentimentoError as error:
            logger.warning("the LoRA %s is left out: %s", place.name, error)
            continue
        adapter = Adapter(
            place.name,
            AdapterKind.LORA,
            digest,
            base.family,
            place.base_digest,
            place.licence,
            latest_start_fraction=bounds.get(digest, 0.0),
        )
        known.append(KnownLora(adapter, place.path))
    return LoraDirectory(known, base, dtype)


def read_bounds(path: Path | None, model_digest: str) -> dict[str, float]:
    """Return the shares of the schedule that may run without a LoRA, by the LoRA's digest: of the file's bounds those
    of this model. Raises InvalidArgument for a file that is none."""
    bounds = read_lora_bounds(path) if path is not None else ()
    return {one.lora_digest: one.latest_start_fraction for one in bounds if one.model_digest == model_digest}


def _judged(place: LoraPlace, base: BaseLayers, dtype: torch.dtype) -> str:
    """The file's digest, once all that is known of it was checked."""
    if not is_adapter_name(place.name):
        raise BadLora(f"{place.name[:80]!r} is no registry name")
    if place.digest and place.directory is not None and digest_directory(place.directory) != place.digest:
        raise BadLora(f"{place.name}: its digest is not the one in {REGISTRY}")
    return read_lora(place.path, base, dtype).digest


def _places(directory: Path) -> Iterator[LoraPlace]:
    """Links that lead out of the directory are refused with BadCheckpoint."""
    if (directory / REGISTRY).is_file():
        entries = read_json_object(directory / REGISTRY).get("models")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("kind") == "lora":
                yield from _registered(directory, entry)
        return
    for path in sorted(directory.iterdir()):
        file = path if path.suffix == ".safetensors" else _file_in(path)
        if file is not None and file.is_file():
            check_inside(directory, [file])
            yield LoraPlace(path.name.removesuffix(".safetensors"), file)


def _registered(directory: Path, entry: Mapping[str, Any]) -> Iterator[LoraPlace]:
    place = directory / str(entry.get("path", ""))
    file = _file_in(place)
    if file is None:
        logger.warning("the LoRA %s of the registry has no safetensors file", str(entry.get("name"))[:80])
        return
    check_inside(directory, [file])
    base = entry.get("base")
    base_digest = str(base.get("digest", "")) if isinstance(base, dict) else ""
    digest, licence = str(entry.get("digest", "")), str(entry.get("licence", ""))
    yield LoraPlace(str(entry.get("name")), file, place, digest, base_digest, licence)


def _file_in(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    named = [folder / name for name in _FILE_NAMES if (folder / name).is_file()]
    return next(iter(named or sorted(folder.glob("*.safetensors"))), None)
