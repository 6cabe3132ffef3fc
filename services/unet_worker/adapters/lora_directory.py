"""The LoRAs of a directory: by its registry.json, or each of its safetensors files and folders by name."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import check_inside, read_json_object
from pentimento.diffusion.loras import (
    BadLora,
    BaseLayers,
    Lora,
    check_lora,
    digest_lora,
    lora_file_in,
    read_lora,
)
from pentimento.domain.adapters import Adapter, AdapterKind, is_adapter_name, is_digest
from pentimento.domain.errors import PentimentoError
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.policies.lora_bounds import read_lora_bounds

logger = logging.getLogger(__name__)

REGISTRY = "registry.json"


@dataclass(frozen=True)
class LoraPlace:
    """A LoRA's file, and what a registry says of it; empty where it says nothing."""

    name: str
    path: Path
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
    """Return the LoRAs of `directory` that change the model, judged by their headers: what does not fit is logged and
    left out. A registry's digests are taken at its word until a LoRA is read; a file without one is digested, in
    pieces. `bounds` are shares of the schedule by digest."""
    known = []
    for place in _places(directory):
        if place.base_digest not in ("", model_digest):
            continue
        try:
            digest = _judged(place, base)
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


def read_bounds(path: Path | None, directory: Path, model_digest: str) -> dict[str, float]:
    """Return the shares of the schedule that may run without a LoRA, by the LoRA's digest: of the bounds in the file,
    or where None is given in the one beside the LoRAs, those of this model. Raises InvalidArgument for a file that is
    none."""
    beside = directory / LORA_BOUNDS_FILE
    chosen = path or (beside if beside.is_file() else None)
    bounds = read_lora_bounds(chosen) if chosen is not None else ()
    return {one.lora_digest: one.latest_start_fraction for one in bounds if one.model_digest == model_digest}


def _judged(place: LoraPlace, base: BaseLayers) -> str:
    """The file's digest, once its header was checked."""
    if not is_adapter_name(place.name):
        raise BadLora(f"{place.name[:80]!r} is no registry name")
    if place.digest and not is_digest(place.digest):
        raise BadLora(f"{place.name}: its digest in {REGISTRY} is none")
    try:
        check_lora(place.path, base)
        return place.digest or digest_lora(place.path)
    except OSError as error:
        raise BadLora(f"{place.path.name}: cannot be read ({error.strerror})") from None


def _places(directory: Path) -> Iterator[LoraPlace]:
    """Links that lead out of the directory are refused with BadCheckpoint."""
    if (directory / REGISTRY).is_file():
        entries = read_json_object(directory / REGISTRY).get("models")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("kind") == "lora":
                yield from _registered(directory, entry)
        return
    for path in sorted(directory.iterdir()):
        file = path if path.suffix == ".safetensors" else lora_file_in(path)
        if file is not None and file.is_file():
            check_inside(directory, [file])
            yield LoraPlace(path.name.removesuffix(".safetensors"), file)


def _registered(directory: Path, entry: Mapping[str, Any]) -> Iterator[LoraPlace]:
    file = lora_file_in(directory / str(entry.get("path", "")))
    if file is None:
        logger.warning("the LoRA %s of the registry has no safetensors file", str(entry.get("name"))[:80])
        return
    check_inside(directory, [file])
    base = entry.get("base")
    base_digest = str(base.get("digest", "")) if isinstance(base, dict) else ""
    digest, licence = str(entry.get("digest", "")), str(entry.get("licence", ""))
    yield LoraPlace(str(entry.get("name")), file, digest, base_digest, licence)
