"""Find a model below an address of S3: fetch the files that a loader reads, check and digest them as on a disk. Free of
torch."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pentimento.diffusion.allow_list import FAMILIES, check_checkpoint, family_of
from pentimento.diffusion.checkpoint import (
    TEXT_SUFFIXES,
    BadCheckpoint,
    allowed_components,
    digest_checkpoint,
    read_index,
)
from pentimento.domain.models import ModelVariant, digest_of
from pentimento.stores.components.addresses import Address
from pentimento.stores.components.models import ModelFolders

_INDEX = "model_index.json"
_WEIGHTS = ".safetensors"


def model_below(url: str, name: str, folders: ModelFolders) -> ModelVariant:
    """Return the model below an address as `name`, with its files on the local disk; without licence and defaults.
    Raises BadCheckpoint, InvalidArgument for another url, StoreFull, and the store's errors."""
    address = Address(url, folders)
    if _INDEX not in address.paths:
        raise BadCheckpoint(f"{address.name}: there is no {_INDEX} below it")
    with address.fetched([_INDEX]) as (index,):
        paths = list(_read_files(address.name, folders.blob(index), address.paths))
    with address.fetched(paths) as files:
        model = ModelVariant(name, digest_of(files), "", "", files, source=url)
        checkpoint = check_checkpoint(folders.prepare(model))
        digest = digest_checkpoint(replace(checkpoint, sums=folders.sums)).model
    read = tuple(file for file in files if file.path in checkpoint.files)
    return replace(model, digest=digest, family=family_of(checkpoint).name, files=read)


def _read_files(where: str, index: Path, paths: Mapping[str, PurePosixPath]) -> Iterator[str]:
    """Yield the paths of the files that a loader reads, by the model's index. Raises BadCheckpoint for a model without
    safetensors files."""
    rules = {name: family.rules for family in FAMILIES for name in family.pipeline_classes}
    stated = read_index(index, rules)
    components = allowed_components(index, stated, rules[stated["_class_name"]])
    own = [path for path, parts in paths.items() if len(parts.parts) == 2 and parts.parts[0] in components]
    weights = [path for path in own if path.endswith(_WEIGHTS)]
    weights = weights or [path for path, parts in paths.items() if len(parts.parts) == 1 and path.endswith(_WEIGHTS)]
    if not weights:
        raise BadCheckpoint(f"{where}: has no safetensors files (pickled weights are never opened)")
    yield _INDEX
    yield from (path for path in own if paths[path].suffix in TEXT_SUFFIXES)
    yield from weights
