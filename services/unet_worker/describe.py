"""Describe a checkpoint for the model repository, as JSON: `python -m services.unet_worker.describe --model DIR`.

The checkpoint is validated as before a worker's load; torch is not loaded.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

from pentimento.diffusion.allow_list import check_checkpoint, family_of
from pentimento.diffusion.checkpoint import Checkpoint, config_text, digest_checkpoint
from pentimento.diffusion.model_registry import registry_entry
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import DeviceCost, ModelFile, ModelVariant
from pentimento.files.json_values import to_json
from pentimento.files.model_files import model_name
from pentimento.profiles.costs import read_costs
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.models.usual_costs import usual_cost, usual_of
from services.unet_worker.settings import DescribeSettings


def described(settings: DescribeSettings) -> ModelVariant:
    """Return the variant that a directory holds, with the costs that the profiles have for its digest.

    Raises BadCheckpoint, and InvalidArgument for a file that is not a profile, or profiles without any costs of it.
    """
    checkpoint = check_checkpoint(settings.model)
    usual = usual_of(settings.model, settings.steps, settings.guidance_scale)
    name = settings.name or model_name(settings.model)
    digest = digest_checkpoint(checkpoint).model
    profiles = [one for one in read_costs(settings.profiles) if one.model_digest == digest]
    if settings.profiles and not profiles:
        raise InvalidArgument.of("profiles", f"must have costs of {digest}")
    return ModelVariant(
        name=name,
        digest=digest,
        family=family_of(checkpoint).name,
        licence=str(registry_entry(settings.model).get("licence", "")),
        files=tuple(sorted(_files(checkpoint), key=lambda file: file.path)),
        costs=tuple(
            DeviceCost(each.device, replace(usual_cost(settings.model, each, *usual), model=name)) for each in profiles
        ),
    )


def _files(checkpoint: Checkpoint) -> Iterator[ModelFile]:
    """Yield the files that the digest is over, published configurations included."""
    for name, path in checkpoint.files.items():
        found = checkpoint.sums.of(path)
        yield ModelFile(name, found.sha256, found.size_bytes)
    for name, config in checkpoint.configs.items():
        text = config_text(config)
        yield ModelFile(name, hashlib.sha256(text).hexdigest(), len(text))


async def main(argv: list[str]) -> None:
    """Print the description."""
    settings = load_settings(DescribeSettings, "describe", argv)
    variant = await asyncio.to_thread(described, settings)
    sys.stdout.write(json.dumps(to_json(variant)) + "\n")


if __name__ == "__main__":
    configure_logging("describe", "")
    run_service(main)
