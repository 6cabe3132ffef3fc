"""Read a model's entry in the registry.json of its directory, and choose default steps and guidance from its files;
without torch.

usual_settings(Path("sdxl-base"))   # 50 steps, guidance 5.0, as diffusers' pipeline has them
usual_settings(Path("sdxl-turbo"))  # 1 step, guidance 0.0
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.file_layouts import FEW_STEPS_NAME, parts_of, recognise
from pentimento.domain.adapters import ANY_DIGEST
from pentimento.domain.errors import FailedPrecondition
from pentimento.files.safetensors_header import SUFFIXES


def registry_entry(model: Path) -> Mapping[str, Any]:
    """Return the model's entry in the registry.json of its parent directory; empty if there is none. Raises
    BadCheckpoint for a registry that cannot be read."""
    path = model.resolve().parent / "registry.json"
    if not path.is_file():
        return {}
    models = read_json_object(path).get("models")
    if not isinstance(models, list) or not all(isinstance(entry, dict) for entry in models):
        raise BadCheckpoint(f"{path}: models must be a list of objects")
    return next((entry for entry in models if entry.get("path") == model.resolve().name), {})


def check_digest(model: Path, digest: str, expected: str) -> None:
    """Raise FailedPrecondition unless the model has the `expected` digest, or if that is empty, its registry's; without
    either, or with ANY_DIGEST, any model passes."""
    if expected == ANY_DIGEST:
        return
    expected = expected or str(registry_entry(model).get("digest", ""))
    if expected not in ("", digest):
        message = f"{model}: its digest is {digest}, expected {expected[:80]}"
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", f"{message} (--expected-digest any serves it all the same)")


@dataclass(frozen=True)
class UsualSettings:
    """Hold default settings. A guidance scale of at most 1 turns guidance off: each step is one pass per image, as it
    always is for a model that is `guidance_distilled`."""

    steps: int
    guidance_scale: float
    guidance_distilled: bool = False

    def is_guided(self, guidance_scale: float) -> bool:
        """Return whether an image with that scale takes two rows."""
        return guidance_scale > 1.0 and not self.guidance_distilled


_INDEX, _SCHEDULER = "model_index.json", "scheduler/scheduler_config.json"
# The defaults of diffusers' pipelines, by class.
_STABLE_DIFFUSION, _QWEN_IMAGE = UsualSettings(50, 7.5), UsualSettings(50, 4.0)
_PIPELINES = {
    "StableDiffusionXLPipeline": UsualSettings(50, 5.0),
    "StableDiffusionXLImg2ImgPipeline": UsualSettings(50, 5.0),
    "StableDiffusion3Pipeline": UsualSettings(28, 7.0),
    "StableDiffusion3Img2ImgPipeline": UsualSettings(50, 7.0),
    **dict.fromkeys(("QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"), _QWEN_IMAGE),
    "SanaPipeline": UsualSettings(20, 4.5),
    "SanaSprintPipeline": UsualSettings(2, 4.5, guidance_distilled=True),
    "SanaSprintImg2ImgPipeline": UsualSettings(2, 4.5, guidance_distilled=True),
}
# Distilled models, from the model cards of the first ones: sd-turbo and sdxl-turbo, stable-diffusion-3.5-large-turbo,
# SDXL-Lightning (also for Hyper-SD), LCM-LoRA's merges. Similar models with the base model's scheduler take more steps.
_TURBO, _FLOW_TURBO, _LIGHTNING = UsualSettings(1, 0.0), UsualSettings(4, 0.0), UsualSettings(4, 0.0)
_CONSISTENCY, _MERGED = UsualSettings(4, 1.0), UsualSettings(8, 1.0)
# FLUX.1 dev (its network takes the scale as an input) and schnell, from their model cards.
_FLUX_DEV = UsualSettings(28, 3.5, guidance_distilled=True)
_FLUX_SCHNELL = UsualSettings(4, 0.0, guidance_distilled=True)
# FLUX.2 [klein], its base and [dev], from their model cards.
_KLEIN, _KLEIN_BASE = UsualSettings(4, 1.0, guidance_distilled=True), UsualSettings(50, 4.0)
_FLUX_2_DEV = UsualSettings(50, 4.0, guidance_distilled=True)
_Z_IMAGE, _Z_IMAGE_TURBO = UsualSettings(50, 5.0), UsualSettings(8, 0.0)
_CONSISTENCY_SCHEDULERS = ("LCMScheduler", "TCDScheduler")
_CONSISTENCY_NAME = re.compile(r"(?<![a-z])lcm(?![a-z])")
_STEPS_IN_NAME = re.compile(r"(?<!\d)([1-8])[-_ ]?steps?(?![a-z])")


def usual_settings(model: Path) -> UsualSettings:
    """Return a checkpoint's default settings; Stable Diffusion's if its files do not state the kind. Raises
    BadCheckpoint for a configuration that cannot be read."""
    is_single = model.suffix in SUFFIXES and model.is_file()
    directory = parts_of(model) if is_single else model
    published = recognise(model) if is_single else None
    index = _stored(directory / _INDEX) or (published.layout.index if published else {})

    def config(name: str) -> Mapping[str, Any]:
        return _stored(directory / name) or (published.configs.get(name, {}) if published else {})

    pipeline = str(index.get("_class_name", ""))
    if pipeline.startswith("Flux2Klein"):
        return _KLEIN if index.get("is_distilled") else _KLEIN_BASE
    if pipeline == "Flux2Pipeline":
        return _FLUX_2_DEV
    if pipeline.startswith("Flux"):
        return _FLUX_DEV if config("transformer/config.json").get("guidance_embeds") else _FLUX_SCHNELL
    names = " ".join(_names(directory, index)).lower()
    if pipeline.startswith("ZImage"):
        return _Z_IMAGE_TURBO if "turbo" in names else _Z_IMAGE
    distilled = _distilled(names, config(_SCHEDULER), is_flow=pipeline.startswith("StableDiffusion3"))
    return distilled or _PIPELINES.get(pipeline, _STABLE_DIFFUSION)


def _distilled(names: str, scheduler: Mapping[str, Any], *, is_flow: bool) -> UsualSettings | None:
    """Return the settings of a distilled model; None for a model that takes its family's number of steps."""
    few_at_once = is_flow or scheduler.get("timestep_spacing") == "trailing"
    if scheduler.get("_class_name") in _CONSISTENCY_SCHEDULERS or _CONSISTENCY_NAME.search(names):
        found = _CONSISTENCY
    elif "turbo" in names:
        found = (_FLOW_TURBO if is_flow else _TURBO) if few_at_once else _MERGED
    elif FEW_STEPS_NAME.search(names):
        found = _LIGHTNING if few_at_once else _MERGED
    else:
        return None
    stated = _STEPS_IN_NAME.search(names)
    return replace(found, steps=int(stated[1])) if stated else found


def _names(directory: Path, index: Mapping[str, Any]) -> Iterator[str]:
    """Yield the checkpoint's names: its directory (the repository in a hub's cache), and the origins of its parts."""
    path = directory.resolve()
    yield path.parent.parent.name if path.parent.name == "snapshots" else path.name
    for stored in (index, *(_stored(directory / part / "config.json") for part in ("unet", "transformer"))):
        yield str(stored.get("_name_or_path", ""))


def _stored(path: Path) -> Mapping[str, Any]:
    return read_json_object(path) if path.is_file() else {}
