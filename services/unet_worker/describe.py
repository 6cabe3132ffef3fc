"""Describe a checkpoint for the model repository, as JSON: `python -m services.unet_worker.describe --model DIR`.

The checkpoint is validated as before a worker's load; torch is not loaded. One at an address of S3 is fetched into the
component store, where workers of this host find it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pentimento.diffusion.allow_list import check_checkpoint, family_of
from pentimento.diffusion.checkpoint import Checkpoint, config_text, digest_checkpoint
from pentimento.diffusion.model_registry import registry_entry
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import DeviceCost, ModelFile, ModelVariant, derived_name
from pentimento.files.file_sums import file_sums_in
from pentimento.files.safetensors_header import model_name
from pentimento.policies.components import Utility
from pentimento.profiles.costs import read_costs
from pentimento.rpc import print_found
from pentimento.stores.components.models import open_folders
from services.unet_worker.models.model_card import usual_cost, usual_of
from services.unet_worker.settings import DescribeSettings


def described(settings: DescribeSettings) -> ModelVariant:
    """Return the variant of a directory, file or address, with the costs that the profiles have for its digest.

    Raises BadCheckpoint, the errors of an address, and InvalidArgument for a file that is not a profile, or profiles
    without any costs of it.
    """
    found, path = _found(settings)
    steps, guidance = usual_of(path, settings.steps, settings.guidance_scale)
    profiles = [one for one in read_costs(settings.profiles) if one.model_digest == found.digest]
    if settings.profiles and not profiles:
        raise InvalidArgument.of("profiles", f"must have costs of {found.digest}")
    costs = (
        DeviceCost(each.device, replace(usual_cost(path, each, steps, guidance), model=found.name)) for each in profiles
    )
    return replace(found, costs=tuple(costs), default_steps=steps, default_guidance_scale=guidance)


def _found(settings: DescribeSettings) -> tuple[ModelVariant, Path]:
    """Return a model without costs and defaults, and its directory or file."""
    if settings.model.startswith("s3://"):
        if settings.component_cache_dir is None:
            raise InvalidArgument.of("component_cache_dir", "must be given for an address")
        # Late: it imports boto3.
        from services.unet_worker.models.remote_model import model_below

        folders = open_folders(settings.component_cache_dir, settings.component_disk_mib, Utility)
        name = settings.name or derived_name(PurePosixPath(urlsplit(settings.model).path).name)
        with folders.alone(settings.model):
            model = model_below(settings.model, name, folders)
        return model, folders.prepare(model)
    path = Path(settings.model)
    checkpoint = replace(check_checkpoint(path), sums=file_sums_in(settings.component_cache_dir))
    return ModelVariant(
        name=settings.name or model_name(path),
        digest=digest_checkpoint(checkpoint).model,
        family=family_of(checkpoint).name,
        licence=str(registry_entry(path).get("licence", "")),
        files=tuple(sorted(_files(checkpoint), key=lambda file: file.path)),
    ), path


def _files(checkpoint: Checkpoint) -> Iterator[ModelFile]:
    """Yield the files that the digest is over, published configurations included."""
    for name, path in checkpoint.files.items():
        found = checkpoint.sums.of(path)
        yield ModelFile(name, found.sha256, found.size_bytes, found.blocks)
    for name, config in checkpoint.configs.items():
        text = config_text(config)
        yield ModelFile(name, hashlib.sha256(text).hexdigest(), len(text))


if __name__ == "__main__":
    print_found("describe", DescribeSettings, described)
