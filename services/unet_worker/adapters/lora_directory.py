"""List the LoRAs of a directory: by its registry.json, or each of its safetensors files and folders by name."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import check_inside, read_json_object
from pentimento.diffusion.loras import BadLora, BaseLayers, Lora, check_lora, digest_lora, read_lora
from pentimento.diffusion.loras.files import is_lora_file, lora_files_in
from pentimento.domain.adapters import (
    EMBEDDINGS_FOLDER,
    IP_ADAPTERS_FOLDER,
    MAX_ADAPTER_NAME_LENGTH,
    Adapter,
    AdapterKind,
    RejectedAdapter,
    adapter_name_for,
    is_adapter_name,
    is_digest,
)
from pentimento.domain.errors import PentimentoError
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.files.file_sums import FileSums
from pentimento.files.signed_entries import TrustedEntries
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind
from pentimento.rpc.watched_file import KeptReading
from pentimento.service.followed_profiles import KEEPS_EARLIER

logger = logging.getLogger(__name__)

REGISTRY = "registry.json"
# Every frontdoor receives the rejected ones, with each change.
MAX_REJECTED = 256
MAX_MESSAGE_LENGTH = 300


@dataclass(frozen=True)
class LoraPlace:
    """Describe a LoRA's file and its registry entry; fields that the registry does not have are empty."""

    name: str
    path: Path
    digest: str = ""
    base_digest: str = ""
    licence: str = ""
    entry: Mapping[str, Any] = field(default_factory=dict)


class LoraDirectory:
    """Hold the LoRAs that a worker's model can use. Names are looked up, never joined to a path."""

    def __init__(
        self,
        known: Sequence[tuple[Adapter, Path]],
        base: BaseLayers,
        dtype: torch.dtype,
        bounds: Callable[[], Mapping[str, float]] = dict,
        rejected: Sequence[RejectedAdapter] = (),
        sums: FileSums | None = None,
    ) -> None:
        self._adapters = tuple(adapter for adapter, _ in known)
        self._bounds = bounds
        self._applied: Mapping[str, float] = {}
        self.rejected = tuple(rejected)
        self._paths = {adapter.digest: path for adapter, path in known}
        self.sizes = {adapter.name: path.stat().st_size for adapter, path in known if path.is_file()}
        self._base = base
        self._dtype = dtype
        self._sums = sums

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Return the LoRAs with the latest starts that profiles allow now."""
        found = self._bounds()
        # Every message to a frontdoor reads them.
        if found is not self._applied:
            self._applied = found
            self._adapters = tuple(
                replace(one, latest_start_fraction=found.get(one.digest, 0.0)) for one in self._adapters
            )
        return self._adapters

    def names_of(self, digests: Collection[str]) -> tuple[str, ...]:
        return tuple(adapter.name for adapter in self._adapters if adapter.digest in digests)

    def read(self, digest: str) -> Lora:
        """Return the LoRA, read from its file again. Raises BadLora if the file has changed since."""
        return read_lora(self._paths[digest], self._base, self._dtype, digest, self._sums)


def open_lora_directory(
    directory: Path,
    model_digest: str,
    base: BaseLayers,
    dtype: torch.dtype,
    bounds: Callable[[], Mapping[str, float]],
    sums: FileSums | None = None,
    trusted: TrustedEntries | None = None,
) -> LoraDirectory:
    """Return the LoRAs of `directory` that change the model, validated by their headers; others are logged and
    rejected. A registry's digests are trusted until a LoRA is read; a file without one is hashed, unless `sums`
    have it. `bounds` returns shares of the schedule by digest. `trusted`: it rejects LoRAs by their entries."""
    known, rejected = [], []
    for place in _places(directory):
        if place.base_digest not in ("", model_digest):
            continue
        try:
            if trusted is not None:
                trusted.check(place.name, place.entry)
            digest = _checked_digest(place, base, sums)
        except PentimentoError as error:
            logger.warning("the LoRA %s is rejected: %s", place.name, error)
            if is_adapter_name(place.name):
                said = error.message[:MAX_MESSAGE_LENGTH]
                rejected.append(RejectedAdapter(place.name, AdapterKind.LORA, error.reason, said))
            continue
        adapter = Adapter(place.name, AdapterKind.LORA, digest, base.family, place.base_digest, place.licence)
        known.append((adapter, place.path))
    return LoraDirectory(known, base, dtype, bounds, rejected[:MAX_REJECTED], sums)


def read_bounds(paths: Sequence[Path], directory: Path, model_digest: str) -> dict[str, float]:
    """Return the shares of the schedule that may run without a LoRA on this model, by the LoRA's digest.

    The shares come from the profiles in the paths, or, if these have none for LoRAs, from the file next to the LoRAs.
    Raises InvalidArgument for a file that is not a profile.
    """
    profiles, beside = read_profiles(paths), directory / LORA_BOUNDS_FILE
    if not profiles.of(ProfileKind.LORA) and beside.is_file():
        profiles = read_profiles([beside])
    return profiles.latest_starts(model_digest)


def bounds_followed(paths: Sequence[Path], directory: Path, model_digest: str) -> Callable[[], Mapping[str, float]]:
    """Return a function that returns `read_bounds`, read again after the files change. A wrong file changes nothing
    then, and is logged."""
    read = partial(read_bounds, paths, directory, model_digest)
    return KeptReading([*paths, directory / LORA_BOUNDS_FILE], read, KEEPS_EARLIER).current


def _checked_digest(place: LoraPlace, base: BaseLayers, sums: FileSums | None) -> str:
    """Check the file's header and return its digest. Raises BadLora if it does not fit."""
    if not is_adapter_name(place.name):
        name = place.name[:80]
        raise BadLora(f"{name!r} is no registry name; call it {adapter_name_for(name)!r} in {REGISTRY}")
    if place.digest and not is_digest(place.digest):
        raise BadLora(f"{place.name}: its digest in {REGISTRY} is none")
    try:
        check_lora(place.path, base)
        return place.digest or digest_lora(place.path, sums)
    except OSError as error:
        raise BadLora(f"{place.path.name}: cannot be read ({error.strerror})") from None


def _places(directory: Path) -> Iterator[LoraPlace]:
    """Yield the LoRAs of a directory. Raises BadCheckpoint for links that lead out of it."""
    if (directory / REGISTRY).is_file():
        entries = read_json_object(directory / REGISTRY).get("models")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("kind") == "lora":
                yield from _registered(directory, entry)
        return
    others = {directory / EMBEDDINGS_FOLDER, directory / IP_ADAPTERS_FOLDER}
    called = {file: title for path in sorted({*directory.iterdir()} - others) for title, file in _titled(path)}
    check_inside(directory, called)
    for file, name in _names_of(called).items():
        if name != called[file]:
            logger.info("the LoRA of %s is served as %s", file.relative_to(directory), name)
        yield LoraPlace(name, file)


def _titled(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the LoRA of a file, with the file's name, or the LoRAs of a folder: the first one with the folder's name,
    the others with the names of folder and file."""
    if is_lora_file(path):
        yield path.stem, path
    for number, file in enumerate(lora_files_in(path)):
        yield f"{path.name}-{file.stem}" if number else path.name, file


def _names_of(called: Mapping[Path, str]) -> dict[Path, str]:
    """Return the registry name of each file: its title if that is valid, else the nearest free one."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for file, title in sorted(called.items(), key=lambda item: (not is_adapter_name(item[1]), item[0])):
        nearest = adapter_name_for(title)
        numbered = (f"{nearest[: MAX_ADAPTER_NAME_LENGTH - 8]}-{number}" for number in count(2))
        names[file] = next(name for name in chain([nearest], numbered) if name not in taken)
        taken.add(names[file])
    return names


def _registered(directory: Path, entry: Mapping[str, Any]) -> Iterator[LoraPlace]:
    path = directory / str(entry.get("path", ""))
    files = [path] if is_lora_file(path) else lora_files_in(path)
    if not files:
        logger.warning("the LoRA %s of the registry has no safetensors file", str(entry.get("name"))[:80])
        return
    file = files[0]
    if len(files) > 1:
        others = ", ".join(other.name for other in files[1:])
        logger.warning(
            "the LoRA %s of the registry is %s; of its folder %s are not served: give each an entry",
            str(entry.get("name"))[:80],
            file.name,
            others[:200],
        )
    check_inside(directory, [file])
    base = entry.get("base")
    base_digest = str(base.get("digest", "")) if isinstance(base, dict) else ""
    digest, licence = str(entry.get("digest", "")), str(entry.get("licence", ""))
    yield LoraPlace(str(entry.get("name")), file, digest, base_digest, licence, entry)
