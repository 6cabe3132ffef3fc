"""Fetch the ControlNets of a registry that are at addresses of S3 into the component store of the host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pentimento.diffusion.checkpoint import TEXT_SUFFIXES, BadCheckpoint
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import ModelVariant, digest_of
from pentimento.files.adapter_registry import RegisteredAdapter
from pentimento.policies.components import Utility
from pentimento.stores.components.models import ModelFolders, open_folders
from services.controlnet_svc.settings import ControlNetSettings

T = TypeVar("T")
_WEIGHTS = ".safetensors"
_READ_SUFFIXES = (*TEXT_SUFFIXES, _WEIGHTS)


@dataclass(frozen=True)
class StoredNetworks:
    """Hold a registry's ControlNets by name, all with directories, and those in the component store."""

    registered: Mapping[str, RegisteredAdapter]
    models: Mapping[str, ModelVariant]
    folders: ModelFolders | None = None

    def load(self, name: str, loader: Callable[[], T]) -> T:
        """Return what `loader` makes of a ControlNet's directory, with all files in it. Raises CorruptComponent that
        names file and source, StoreFull, and the stores' errors."""
        if name not in self.models or self.folders is None:
            return loader()
        return self.folders.load(self.models[name], lambda directory: loader())


def stored_networks(settings: ControlNetSettings) -> StoredNetworks:
    """Return the registry's ControlNets, those at addresses fetched: their configurations say what they are. Blocking.
    Raises BadCheckpoint, FailedPrecondition MODEL_DIGEST_MISMATCH, and the errors of `StoredNetworks.load`."""
    registered = settings.registered
    remote = {name: one for name, one in registered.items() if one.source}
    if not remote:
        return StoredNetworks(registered, {})
    if settings.component_cache_dir is None:
        limit = f"must be given for ControlNets at addresses ({', '.join(sorted(remote))})"
        raise InvalidArgument.of("component_cache_dir", limit)
    # Late: it imports boto3.
    from pentimento.stores.components.addresses import model_at

    folders = open_folders(settings.component_cache_dir, settings.component_disk_mib, Utility)
    models = {
        name: model_at(one.source, one.adapter.digest, name, folders, _network_below) for name, one in remote.items()
    }
    placed = {name: replace(registered[name], directory=_placed(folders, model)) for name, model in models.items()}
    return StoredNetworks({**registered, **placed}, models, folders)


def _placed(folders: ModelFolders, model: ModelVariant) -> Path:
    return folders.load(model, lambda directory: directory)


def _network_below(url: str, name: str, folders: ModelFolders) -> ModelVariant:
    from pentimento.stores.components.addresses import Address

    address = Address(url, folders)
    read = [path for path, parts in address.paths.items() if len(parts.parts) == 1 and parts.suffix in _READ_SUFFIXES]
    if not any(path.endswith(_WEIGHTS) for path in read):
        raise BadCheckpoint(f"{address.name}: has no safetensors files (pickled weights are never opened)")
    with address.fetched(read) as files:
        model = ModelVariant(name, digest_of(files), "", "", files, source=url)
        folders.prepare(model)
    return model
