"""List the model families and the classes that each may load. Without torch: checkpoints are validated before torch is
imported."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.diffusion.checkpoint import Checkpoint, ComponentClass, ComponentRules, open_checkpoint
from pentimento.diffusion.single_file import open_file, with_held


@dataclass(frozen=True)
class Family:
    """Hold a family's allow-list, its `DiffusersFamily`, imported when a checkpoint needs it, its usual half precision,
    and the layers of its language model that give the text states, ascending; later layers are not loaded."""

    name: str
    pipeline_classes: frozenset[str]
    rules: ComponentRules
    adapter: str
    half: str = "float16"
    text_layers: tuple[int, ...] = ()


def _classes(library: str, *names: str) -> frozenset[ComponentClass]:
    return frozenset(ComponentClass(library, name) for name in names)


_CLIP_TOKENIZER = _classes("transformers", "CLIPTokenizer", "CLIPTokenizerFast")
_CLIP_PROJECTING = _classes("transformers", "CLIPTextModelWithProjection")
_T5_ENCODER = _classes("transformers", "T5EncoderModel")
_T5_TOKENIZER = _classes("transformers", "T5Tokenizer", "T5TokenizerFast")
_QWEN_TOKENIZER = _classes("transformers", "Qwen2Tokenizer", "Qwen2TokenizerFast")
_AUTOENCODER = _classes("diffusers", "AutoencoderKL", "AutoencoderTiny")
_FLUX_2_TRANSFORMER = _classes("diffusers", "Flux2Transformer2DModel")
_FLUX_2_AUTOENCODER = _classes("diffusers", "AutoencoderKLFlux2")
_UNET = _classes("diffusers", "UNet2DConditionModel")
_FLOW_SCHEDULER = _classes("diffusers", "FlowMatchEulerDiscreteScheduler")
_DIFFUSION_SCHEDULER = _classes(
    "diffusers",
    "DDIMScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "PNDMScheduler",
    "DDPMScheduler",
    "LMSDiscreteScheduler",
)
# Components of image-prompt adapters, which are never loaded.
_IMAGE_CONDITIONING = {
    "feature_extractor": _classes(
        "transformers",
        "CLIPFeatureExtractor",
        *(f"{kind}ImageProcessor{how}" for kind in ("CLIP", "Siglip") for how in ("", "Fast", "Pil")),
    ),
    "image_encoder": _classes("transformers", "CLIPVisionModelWithProjection", "SiglipVisionModel"),
}

STABLE_DIFFUSION = Family(
    name="stable_diffusion",
    pipeline_classes=frozenset(
        {"StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"}
    ),
    rules=ComponentRules(
        required={
            "unet": _UNET,
            "vae": _AUTOENCODER,
            "text_encoder": _classes("transformers", "CLIPTextModel"),
            "tokenizer": _CLIP_TOKENIZER,
            "scheduler": _DIFFUSION_SCHEDULER,
        },
        unused={"safety_checker": _classes("stable_diffusion", "StableDiffusionSafetyChecker"), **_IMAGE_CONDITIONING},
    ),
    adapter="pentimento.diffusion.families.stable_diffusion.StableDiffusion",
)

STABLE_DIFFUSION_XL = Family(
    name="stable_diffusion_xl",
    pipeline_classes=frozenset(
        {"StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"}
    ),
    rules=ComponentRules(
        required={
            "unet": _UNET,
            "vae": _AUTOENCODER,
            "text_encoder": _classes("transformers", "CLIPTextModel"),
            "text_encoder_2": _CLIP_PROJECTING,
            "tokenizer": _CLIP_TOKENIZER,
            "tokenizer_2": _CLIP_TOKENIZER,
            "scheduler": _DIFFUSION_SCHEDULER,
        },
        unused=_IMAGE_CONDITIONING,
        settings=frozenset({"force_zeros_for_empty_prompt", "requires_aesthetics_score"}),
    ),
    adapter="pentimento.diffusion.families.stable_diffusion_xl.StableDiffusionXl",
)

STABLE_DIFFUSION_3 = Family(
    name="stable_diffusion_3",
    pipeline_classes=frozenset({"StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _classes("diffusers", "SD3Transformer2DModel"),
            "vae": _AUTOENCODER,
            "text_encoder": _CLIP_PROJECTING,
            "text_encoder_2": _CLIP_PROJECTING,
            "tokenizer": _CLIP_TOKENIZER,
            "tokenizer_2": _CLIP_TOKENIZER,
            "scheduler": _FLOW_SCHEDULER,
        },
        optional={"text_encoder_3": _T5_ENCODER, "tokenizer_3": _T5_TOKENIZER},
        unused=_IMAGE_CONDITIONING,
        settings=frozenset({"max_sequence_length"}),
    ),
    adapter="pentimento.diffusion.families.stable_diffusion_3.StableDiffusion3",
)

FLUX = Family(
    name="flux",
    pipeline_classes=frozenset({"FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _classes("diffusers", "FluxTransformer2DModel"),
            "vae": _AUTOENCODER,
            "text_encoder": _classes("transformers", "CLIPTextModel"),
            "text_encoder_2": _T5_ENCODER,
            "tokenizer": _CLIP_TOKENIZER,
            "tokenizer_2": _T5_TOKENIZER,
            "scheduler": _FLOW_SCHEDULER,
        },
        unused=_IMAGE_CONDITIONING,
        settings=frozenset({"max_sequence_length"}),
    ),
    adapter="pentimento.diffusion.families.flux.Flux",
    half="bfloat16",
)

FLUX_2_KLEIN = Family(
    name="flux_2",
    pipeline_classes=frozenset({"Flux2KleinPipeline", "Flux2KleinInpaintPipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _FLUX_2_TRANSFORMER,
            "vae": _FLUX_2_AUTOENCODER,
            "text_encoder": _classes("transformers", "Qwen3ForCausalLM"),
            "tokenizer": _QWEN_TOKENIZER,
            "scheduler": _FLOW_SCHEDULER,
        },
        settings=frozenset({"max_sequence_length", "is_distilled"}),
    ),
    adapter="pentimento.diffusion.families.flux_2.Flux2Klein",
    half="bfloat16",
    text_layers=(9, 18, 27),
)

FLUX_2_DEV = Family(
    name="flux_2",
    pipeline_classes=frozenset({"Flux2Pipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _FLUX_2_TRANSFORMER,
            "vae": _FLUX_2_AUTOENCODER,
            "text_encoder": _classes("transformers", "Mistral3ForConditionalGeneration"),
            "tokenizer": _classes("transformers", "PixtralProcessor"),
            "scheduler": _FLOW_SCHEDULER,
        },
        settings=frozenset({"max_sequence_length"}),
    ),
    adapter="pentimento.diffusion.families.flux_2.Flux2Dev",
    half="bfloat16",
    text_layers=(10, 20, 30),
)

Z_IMAGE = Family(
    name="z_image",
    pipeline_classes=frozenset({"ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _classes("diffusers", "ZImageTransformer2DModel"),
            "vae": _AUTOENCODER,
            "text_encoder": _classes("transformers", "Qwen3Model"),
            "tokenizer": _QWEN_TOKENIZER,
            "scheduler": _FLOW_SCHEDULER,
        },
        settings=frozenset({"max_sequence_length"}),
    ),
    adapter="pentimento.diffusion.families.z_image.ZImage",
    half="bfloat16",
)

SANA = Family(
    name="sana",
    pipeline_classes=frozenset({"SanaPipeline", "SanaSprintPipeline", "SanaSprintImg2ImgPipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _classes("diffusers", "SanaTransformer2DModel"),
            "vae": _classes("diffusers", "AutoencoderDC"),
            "text_encoder": _classes("transformers", "Gemma2Model"),
            "tokenizer": _classes("transformers", "GemmaTokenizer", "GemmaTokenizerFast"),
            "scheduler": _FLOW_SCHEDULER | _classes("diffusers", "DPMSolverMultistepScheduler", "SCMScheduler"),
        },
        settings=frozenset({"max_sequence_length"}),
    ),
    adapter="pentimento.diffusion.families.sana.Sana",
    half="bfloat16",
)

QWEN_IMAGE = Family(
    name="qwen_image",
    pipeline_classes=frozenset({"QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"}),
    rules=ComponentRules(
        required={
            "transformer": _classes("diffusers", "QwenImageTransformer2DModel"),
            "vae": _classes("diffusers", "AutoencoderKLQwenImage"),
            "text_encoder": _classes("transformers", "Qwen2_5_VLForConditionalGeneration"),
            "tokenizer": _QWEN_TOKENIZER,
            "scheduler": _FLOW_SCHEDULER,
        },
        settings=frozenset({"max_sequence_length"}),
    ),
    adapter="pentimento.diffusion.families.qwen_image.QwenImage",
    half="bfloat16",
)

FAMILIES = (
    STABLE_DIFFUSION,
    STABLE_DIFFUSION_XL,
    STABLE_DIFFUSION_3,
    FLUX,
    FLUX_2_KLEIN,
    FLUX_2_DEV,
    Z_IMAGE,
    SANA,
    QWEN_IMAGE,
)


def check_checkpoint(model: Path) -> Checkpoint:
    """Return the checkpoint of a directory, or of a safetensors file, that may be served. Raises BadCheckpoint with one
    line that names the fault."""
    rules = {name: family.rules for family in FAMILIES for name in family.pipeline_classes}
    return open_file(model, rules) if model.is_file() else with_held(open_checkpoint(model, rules))


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family of a checkpoint."""
    return next(family for family in FAMILIES if checkpoint.pipeline_class in family.pipeline_classes)
