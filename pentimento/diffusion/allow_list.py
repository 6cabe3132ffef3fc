"""List the model families and the classes that each may load, and open a checkpoint in one file, safetensors or GGUF:
its networks, published configurations, and the folders of a directory of its name. Without torch: checkpoints are
validated before torch is imported.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import (
    BadCheckpoint,
    Checkpoint,
    ComponentClass,
    ComponentRules,
    allowed_components,
    check_inside,
    component_files,
    open_checkpoint,
    pipeline_settings,
    read_index,
)
from pentimento.diffusion.file_layouts import CLIP_MERGES, RecognisedFile, parts_of, recognise
from pentimento.files.safetensors_header import SUFFIXES

_INDEX = "model_index.json"
_CLIP_TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")


def open_file(file: Path, rules: Mapping[str, ComponentRules]) -> Checkpoint:
    """Return the checkpoint of a file after checking its header and the folders that complete it.

    Raises BadCheckpoint naming the tensor, the missing part and where to put it.
    """
    if file.suffix not in SUFFIXES:
        raise BadCheckpoint(f"{file}: only {' and '.join(SUFFIXES)} files are opened; a pickle may run code")
    parts = parts_of(file)
    stored = _stored_index(parts, rules)
    found = recognise(file, _same_family(stored.get("_class_name"), rules))
    index = stored or _without_absent(found, parts)
    path = parts / _INDEX if stored else file
    allowed = rules[index["_class_name"]]
    components = allowed_components(path, index, allowed)
    files = {file.name: file} | ({_INDEX: path} if stored else {})
    for name, kind in components.items():
        files |= _files_of(file, parts, found, name, kind.name)
    configs = {
        name: config
        for name, config in found.configs.items()
        if name.partition("/")[0] in components and name not in files
    }
    _check_shapes(file, parts, found, configs)
    return Checkpoint(
        directory=file,
        pipeline_class=index["_class_name"],
        components=components,
        files=files,
        settings=pipeline_settings(path, index, allowed),
        single_file=file,
        held=_not_replaced(found.held, files),
        configs=configs,
        parts=parts,
    )


def with_held(checkpoint: Checkpoint) -> Checkpoint:
    """Return a directory's checkpoint with the networks in its single file. Raises BadCheckpoint if one is missing."""
    if checkpoint.single_file is None:
        return checkpoint
    held = recognise(checkpoint.single_file, [checkpoint.pipeline_class]).held
    for name, kind in checkpoint.components.items():
        if name not in held and _is_network(name, kind.name):
            raise BadCheckpoint(f"{checkpoint.single_file}: holds no tensors of {name}")
    return replace(checkpoint, held={name: prefix for name, prefix in held.items() if name in checkpoint.components})


def _is_network(component: str, class_name: str) -> bool:
    return component != "scheduler" and "Tokenizer" not in class_name


def _stored_index(parts: Path, rules: Mapping[str, ComponentRules]) -> dict[str, Any]:
    if not (parts / _INDEX).is_file():
        return {}
    check_inside(parts, [parts / _INDEX])
    return read_index(parts / _INDEX, rules)


def _same_family(pipeline_class: Any, rules: Mapping[str, ComponentRules]) -> Collection[str]:
    """Return the pipeline classes with the same components."""
    return [name for name, allowed in rules.items() if allowed is rules.get(pipeline_class)]


def _without_absent(found: RecognisedFile, parts: Path) -> dict[str, Any]:
    """Return the published index; T5 is absent unless the file or a folder has it."""
    index = dict(found.layout.index)
    if "text_encoder_3" not in found.held and not (parts / "text_encoder_3").is_dir():
        for name in ("text_encoder_3", "tokenizer_3"):
            index.pop(name, None)
    return index


def _files_of(file: Path, parts: Path, found: RecognisedFile, component: str, class_name: str) -> dict[str, Path]:
    """Return the files of a component by name: those of its folder, or the merges of CLIP's tokenizer. Raises
    BadCheckpoint if neither the file nor the folder has its weights or words."""
    folder = parts / component
    own = component_files(parts, folder) if folder.is_dir() else []
    files = {f"{component}/{path.name}": path for path in own}
    if class_name in _CLIP_TOKENIZERS and not _has_words(own):
        return {**files, f"{component}/merges.txt": CLIP_MERGES}
    if "Tokenizer" in class_name and not _has_words(own):
        raise BadCheckpoint(f"{file}: put the files of its {component} ({class_name}) into {folder}")
    has_weights = any(path.suffix == ".safetensors" for path in own)
    if _is_network(component, class_name) and component not in found.held and not has_weights:
        prefix = found.layout.keys.get(component, "")
        raise BadCheckpoint(f"{file}: holds no tensor {prefix}*: put its {component} ({class_name}) into {folder}")
    return files


def _has_words(files: Iterable[Path]) -> bool:
    return any(path.name in ("vocab.json", "tokenizer.json", "spiece.model") for path in files)


def _check_shapes(file: Path, parts: Path, found: RecognisedFile, configs: Mapping[str, Any]) -> None:
    config = f"{found.layout.denoiser}/config.json"
    if found.unpublished and config in configs:
        message = f"{found.unpublished!r} has another shape than in {found.layout.title}"
        raise BadCheckpoint(f"{file}: {message}: put the model's configuration into {parts / config}")


def _not_replaced(held: Mapping[str, str], files: Mapping[str, Path]) -> dict[str, str]:
    """Return the networks that are read from the file: weights in a component's folder replace its own."""
    replaced = {name.partition("/")[0] for name, path in files.items() if path.suffix == ".safetensors"}
    return {name: prefix for name, prefix in held.items() if name not in replaced}


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
