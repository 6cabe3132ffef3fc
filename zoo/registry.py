"""Read and write the registry of the zoo's exported models: their directories, foundations and digests.

`registry.json` has one entry a directory. Its digest is the same as a worker's or an embedder's
(`pentimento.diffusion.checkpoint.digest_directory`; of a LoRA `pentimento.diffusion.loras.files.digest_lora`), without
the card.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import digest_directory
from pentimento.domain.errors import FailedPrecondition, NotFound
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.files import replacing

WEIGHTS = Path(__file__).parent / "weights"
REGISTRY = "registry.json"
VERSION = 1
LICENCE = "Apache-2.0"
CARD = "README.md"


@dataclass(frozen=True)
class ZooModel:
    """Describe one directory. `part` is its trained part, `base` the model that it changes and needs.

    `steps` and `guidance_scale` are a pipeline's defaults for requests.
    """

    name: str
    kind: str
    family: str
    part: str
    base: str | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    cascade: tuple[str, str] | None = None  # a discriminator's cascade: light and heavy
    encoder: str | None = None  # of the prompts that a discriminator reads


MODELS = {
    model.name: model
    for model in (
        ZooModel("tiny-heavy", "pipeline", "sd", "heavy", steps=50, guidance_scale=1.5),
        ZooModel("tiny-light", "pipeline", "sd", "light", steps=12, guidance_scale=2.5),
        ZooModel("tiny-flow", "pipeline", "sd3", "flow-refined", steps=28, guidance_scale=4.0),
        ZooModel("tiny-clip", "dual_encoder", "clip", "image-tower"),
        ZooModel("tiny-controlnet-edges", "controlnet", "sd", "controlnet-edges", base="tiny-heavy"),
        ZooModel("tiny-controlnet-layout", "controlnet", "sd", "controlnet-layout", base="tiny-heavy"),
        ZooModel("tiny-lora-neon", "lora", "sd", "lora-neon", base="tiny-heavy"),
        ZooModel("tiny-lora-blueprint", "lora", "sd", "lora-blueprint", base="tiny-heavy"),
        ZooModel("tiny-lora-mosaic", "lora", "sd", "lora-mosaic", base="tiny-heavy"),
        ZooModel(
            "tiny-discriminator",
            "discriminator",
            "efficientnet",
            "discriminator",
            cascade=("tiny-light", "tiny-heavy"),
        ),
    )
}


# Written by separate commands, not by the export: users train them for a pair of models.
HEADS = {
    model.name: model
    for model in (
        ZooModel(
            "tiny-router",
            "discriminator",
            "prompt-head",
            "prompt-head",
            cascade=("tiny-light", "tiny-heavy"),
            encoder="tiny-clip",
        ),
    )
}
# The first discriminator of a cascade is its default.
ALL = HEADS | MODELS


def write_registry(weights: Path = WEIGHTS) -> dict[str, Any]:
    """Write registry.json for the existing directories.

    Raises FailedPrecondition for one without its base, since its entry names the base's digest.
    """
    there = {name: digest_of(model, weights / name) for name, model in ALL.items() if (weights / name).is_dir()}
    registry = {"version": VERSION, "models": [_entry(ALL[name], there) for name in there]}
    with replacing(weights / REGISTRY) as partial:
        partial.write_text(json.dumps(registry, indent=2) + "\n", encoding="utf-8")
    return registry


def digest_of(model: ZooModel, folder: Path) -> str:
    """Return the services' digest of the directory's model: a LoRA's is of the one file that they load; the rest of the
    directory has other formats."""
    # imported here: reading the registry needs no torch
    from pentimento.diffusion.loras import digest_lora, lora_file_in

    file = lora_file_in(folder) if model.kind == "lora" else None
    return digest_lora(file) if file is not None else digest_directory(folder)


def _entry(model: ZooModel, digests: dict[str, str]) -> dict[str, Any]:
    def named(other: str) -> dict[str, str]:
        if other not in digests:
            raise FailedPrecondition("BASE_MISSING", f"{model.name} stands on {other}, which is not exported here")
        return {"name": other, "digest": digests[other]}

    entry: dict[str, Any] = {"name": model.name, "kind": model.kind, "family": model.family}
    if model.kind == "pipeline":
        entry |= {"default_steps": model.steps, "default_guidance_scale": model.guidance_scale}
    if model.kind != "lora":
        entry |= {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    if model.base is not None:
        entry["base"] = named(model.base)
    if model.cascade is not None:
        entry["cascade"] = dict(zip(("light", "heavy"), map(named, model.cascade), strict=True))
    if model.encoder is not None:
        entry["encoder"] = named(model.encoder)
    return entry | {
        "path": model.name,
        "digest": digests[model.name],
        "licence": LICENCE,
        "card": f"{model.name}/{CARD}",
    }


def read_registry(weights: Path = WEIGHTS) -> dict[str, dict[str, Any]]:
    """Return the registry's entries by name. Raises NotFound, or FailedPrecondition for a file that is no registry."""
    path = weights / REGISTRY
    if not path.is_file():
        raise NotFound("FILE_MISSING", f"{path}: not there; `pentimento zoo export` writes it")
    try:
        models = json.loads(path.read_text(encoding="utf-8"))["models"]
        return {str(model["name"]): model for model in models}
    except (ValueError, KeyError, TypeError):
        raise FailedPrecondition("BAD_FILE", f"{path}: expected a registry of models") from None


def entry_of(name: str, weights: Path = WEIGHTS) -> dict[str, Any]:
    """Return one model's entry. Raises NotFound listing the existing ones."""
    registry = read_registry(weights)
    if name not in registry:
        raise NotFound("MODEL_NOT_FOUND", f"{name}: not in {weights / REGISTRY}, which has {', '.join(registry)}")
    return registry[name]
