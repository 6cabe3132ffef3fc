"""Find the models that are not on a worker's disk: registered with the controller, or at an address of S3. Their files
are components, which the processes of a host share. Free of torch."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import TypeVar

from pentimento.clients.controller import ModelRepositoryClient
from pentimento.diffusion.model_registry import registry_entry
from pentimento.domain.components import Tier
from pentimento.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from pentimento.domain.models import ModelVariant
from pentimento.files.signed_entries import TrustedEntries, entry_of_variant
from pentimento.policies.components import Utility
from pentimento.rpc import open_channel
from pentimento.service.components import known_peers
from pentimento.service.fleet_member import addresses
from pentimento.stores.components.models import ModelFolders, open_folders
from services.unet_worker.models.model_card import OtherModel, named_models
from services.unet_worker.settings import SkipMissing, UnetWorkerSettings, source_of

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Suites start all processes at a time: the controller may still open its ledger.
CONTROLLER_WAIT_S = 60.0
_PAUSE_S = 0.2
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class StoredModels:
    folders: ModelFolders | None = None
    models: Mapping[Path, ModelVariant] = field(default_factory=dict)

    def load(self, loader: Callable[[UnetWorkerSettings], T], settings: UnetWorkerSettings) -> T:
        """Return what `loader` makes of the settings, once the files of their model are on the local disk. Raises
        CorruptComponent that names file and source, StoreFull, and the stores' errors."""
        model = self.models.get(settings.model)
        if model is None or self.folders is None:
            return loader(settings)
        return self.folders.load(model, lambda directory: loader(settings))

    def tiers(self, settings: UnetWorkerSettings) -> Mapping[Tier, int]:
        """Return the bytes of a model's files by the tier that has them."""
        model = self.models.get(settings.model)
        if model is None or self.folders is None:
            return local_tiers(settings)
        found = Counter[Tier]()
        for file in model.stored_files:
            found[Tier.DISK if self.folders.blob(file).exists() else Tier.STORE] += file.size_bytes
        return found


def local_tiers(settings: UnetWorkerSettings) -> Mapping[Tier, int]:
    path = settings.model
    files = path.rglob("*") if path.is_dir() else (path,)
    # A file may be gone, or a link without its file: a load of the model fails, and names it.
    size_bytes = sum(one.stat().st_size for one in files if one.suffix in WEIGHT_SUFFIXES and one.is_file())
    return {Tier.DISK: size_bytes} if size_bytes else {}


async def with_stored(settings: UnetWorkerSettings) -> tuple[UnetWorkerSettings, StoredModels]:
    """Return the settings with directories for models that are not on disk, and these models; the files of the worker's
    own one are fetched. Models that are not found and may be missing stay so. Raises NotFound for others, the errors of
    `StoredModels.load`, and of `TrustedEntries.check` for entries."""
    settings = with_signed_digests(settings)
    others = named_models(settings)
    absent = [one for one in (OtherModel(settings.model), *others) if not one.path.exists()]
    if not absent or settings.component_cache_dir is None:
        return settings, StoredModels()
    root = settings.component_cache_dir
    peers = known_peers(settings)
    folders = open_folders(root, settings.component_disk_mib, Utility, settings.objects_url, peers)
    placed, models = dict[Path, Path](), dict[Path, ModelVariant]()
    for one in absent:
        name = settings.model_name if one.path == settings.model and settings.model_name else one.name
        if (model := await _find(settings, name, folders, is_own=one.path == settings.model)) is not None:
            placed[one.path] = await asyncio.to_thread(folders.prepare, model)
            models[placed[one.path]] = model
    if settings.model in placed:
        own = placed[settings.model]
        await asyncio.to_thread(folders.load, models[own], lambda directory: None)
        settings = replace(settings, model=own, model_name=models[own].name)
        if settings.trusted is not None:
            settings = replace(settings, expected_digest=models[own].digest)
    given = tuple(_given(placed.get(one.path, one.path), one.digest) for one in others)
    return replace(settings, other_models=given), StoredModels(folders, models)


def with_signed_digests(settings: UnetWorkerSettings) -> UnetWorkerSettings:
    """Return the settings with the digests of the signed entries of models on disk, if entries must be signed. Raises
    FailedPrecondition for a model without such an entry, or with another digest in it."""
    if settings.trusted is None:
        return settings
    named = named_models(settings)
    digests = (
        signed_digest(settings.trusted, one.path, one.digest) if one.path.exists() else one.digest for one in named
    )
    others = tuple(_given(one.path, digest) for one, digest in zip(named, digests, strict=True))
    sources = tuple(given for given in settings.other_models if source_of("other_models", given) is not None)
    if settings.model.exists():
        digest = signed_digest(settings.trusted, settings.model, settings.expected_digest)
        settings = replace(settings, expected_digest=digest)
    return replace(settings, other_models=(*others, *sources))


def signed_digest(trusted: TrustedEntries, model: Path, expected: str) -> str:
    """Return the digest of a model in the registry.json next to it. Raises FailedPrecondition."""
    entry = registry_entry(model)
    trusted.check(str(entry.get("name", model.name)), entry)
    if expected not in ("", entry["digest"]):
        message = f"{model}: its signed entry has the digest {entry['digest']}, expected {expected[:80]}"
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", message)
    return str(entry["digest"])


def _given(path: Path, digest: str) -> Path:
    return Path(f"{path}@{digest}") if digest else path


async def _find(settings: UnetWorkerSettings, name: str, folders: ModelFolders, *, is_own: bool) -> ModelVariant | None:
    sources = settings.sources
    try:
        if name in sources:
            return await asyncio.to_thread(_below, *sources[name], name, folders)
        if not settings.controller_address and not is_own:
            return None
        model = await _registered(settings, name)
        if (trusted := settings.trusted) is not None:
            trusted.check(name, entry_of_variant(model))
        if not model.source:
            where = f"--model: {name} is registered, but its files were not uploaded"
            raise NotFound("MODEL_NOT_STORED", f"{where}; `pentimento models add {name} DIRECTORY` uploads them")
        return model
    except (NotFound, Unavailable, DeadlineExceeded) as error:
        tolerated = (SkipMissing.ALL,) if is_own else (SkipMissing.ALL, SkipMissing.OTHERS)
        if settings.skip_missing not in tolerated:
            raise
        logger.warning("a model is neither on disk nor registered: %s", error.message, extra={"model": name})
        return None


def _below(url: str, digest: str, name: str, folders: ModelFolders) -> ModelVariant:
    # Late: they import boto3.
    from pentimento.stores.components.addresses import model_at
    from services.unet_worker.models.remote_model import model_below

    return model_at(url, digest, name, folders, model_below)


async def _registered(settings: UnetWorkerSettings, name: str) -> ModelVariant:
    """Return a registered model, once a controller answers. Raises NotFound, and Unavailable after CONTROLLER_WAIT_S
    seconds."""
    found = addresses(settings.controller_address)
    if not found:
        raise NotFound("NOT_REGISTERED", f"no such file or directory: {name}, and there is no controller to ask for it")
    loop = asyncio.get_running_loop()
    due_s = loop.time() + CONTROLLER_WAIT_S
    for address in cycle(found):
        async with open_channel(address, settings.channels) as channel:
            try:
                return await ModelRepositoryClient(channel).model(name, _CALL_TIMEOUT_S)
            except (Unavailable, DeadlineExceeded):
                if loop.time() > due_s:
                    raise
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError("a cycle of addresses does not end")
