"""The families there are, and which classes each may load. Free of torch: a checkpoint is judged before it is there."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.diffusion.checkpoint import Checkpoint, ComponentClass, ComponentRules, open_checkpoint


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


def check_checkpoint(directory: Path) -> Checkpoint:
    """Raises BadCheckpoint with one line naming what is wrong."""
    return open_checkpoint(directory, {name: family.rules for family in FAMILIES for name in family.pipeline_classes})


def family_of(checkpoint: Checkpoint) -> Family:
    return next(family for family in FAMILIES if checkpoint.pipeline_class in family.pipeline_classes)
