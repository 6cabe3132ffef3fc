"""Which family serves a checkpoint, by the pipeline class that model_index.json names."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from pentimento.diffusion.checkpoint import Checkpoint, ComponentClass, ComponentRules, open_checkpoint
from pentimento.diffusion.families.model import DiffusionModel

FamilyLoader = Callable[[Checkpoint, torch.device, torch.dtype], DiffusionModel]


@dataclass(frozen=True)
class Family:
    """A family's allow-list and the module with its `load`, imported when a checkpoint asks for it."""

    name: str
    pipeline_classes: frozenset[str]
    rules: ComponentRules
    module: str


def _classes(library: str, *names: str) -> frozenset[ComponentClass]:
    return frozenset(ComponentClass(library, name) for name in names)


STABLE_DIFFUSION = Family(
    name="stable_diffusion",
    pipeline_classes=frozenset({"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"}),
    rules=ComponentRules(
        required={
            "unet": _classes("diffusers", "UNet2DConditionModel"),
            "vae": _classes("diffusers", "AutoencoderKL", "AutoencoderTiny"),
            "text_encoder": _classes("transformers", "CLIPTextModel"),
            "tokenizer": _classes("transformers", "CLIPTokenizer", "CLIPTokenizerFast"),
            "scheduler": _classes(
                "diffusers",
                "DDIMScheduler",
                "EulerDiscreteScheduler",
                "PNDMScheduler",
                "DDPMScheduler",
                "DPMSolverMultistepScheduler",
                "EulerAncestralDiscreteScheduler",
                "LMSDiscreteScheduler",
            ),
        },
        unused={
            "safety_checker": _classes("stable_diffusion", "StableDiffusionSafetyChecker"),
            "feature_extractor": _classes("transformers", "CLIPFeatureExtractor", "CLIPImageProcessor"),
        },
    ),
    module="pentimento.diffusion.families.stable_diffusion",
)

FAMILIES = (STABLE_DIFFUSION,)


def load_model(directory: Path, device: torch.device, dtype: torch.dtype) -> DiffusionModel:
    """Checks the directory, then loads it. Raises BadCheckpoint with one line naming what is wrong."""
    by_class = {name: family for family in FAMILIES for name in family.pipeline_classes}
    checkpoint = open_checkpoint(directory, {name: family.rules for name, family in by_class.items()})
    load: FamilyLoader = import_module(by_class[checkpoint.pipeline_class].module).load
    return load(checkpoint, device, dtype)
