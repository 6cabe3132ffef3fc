"""Load components of a validated checkpoint with the classes of diffusers and transformers: local files, safetensors
only, no code from the directory. Networks are built without memory and take the tensors as they were read."""

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint, read_json_object
from pentimento.diffusion.clip_encoder import ACTIVATIONS, ClipTextConfig, ClipTextEncoder
from pentimento.diffusion.component_config import (
    CLIP_TEXT_KEYS,
    CLIP_VISION_KEYS,
    DEPTH_KEYS,
    GEMMA2_KEYS,
    MISTRAL3_KEYS,
    QWEN3_KEYS,
    QWEN_VL_KEYS,
    T5_KEYS,
    network_config,
)
from pentimento.diffusion.original_weights import load_original, original_tensors
from pentimento.diffusion.packed_weights import pack
from pentimento.diffusion.staging import staged_tokenizer
from pentimento.diffusion.tensor_files import read_tensors
from pentimento.diffusion.thread_dtype import ThreadDtype, keep_default_in_transformers
from pentimento.diffusion.weight_memory import (
    WHOLE,
    LoadedPart,
    keep_in_host_memory,
    loaded_files,
    loaded_part,
    storage_of,
    weight_bytes,
)
from pentimento.files.file_sums import CorruptComponent, FileSums

logger = logging.getLogger(__name__)

# The module of each class of model_index.json: submodules load in a fraction of the time of the packages' namespaces.
NETWORKS = {
    "UNet2DConditionModel": ("diffusers.models.unets.unet_2d_condition", "UNet2DConditionModel"),
    "SD3Transformer2DModel": ("diffusers.models.transformers.transformer_sd3", "SD3Transformer2DModel"),
    "FluxTransformer2DModel": ("diffusers.models.transformers.transformer_flux", "FluxTransformer2DModel"),
    "Flux2Transformer2DModel": ("diffusers.models.transformers.transformer_flux2", "Flux2Transformer2DModel"),
    "ZImageTransformer2DModel": ("diffusers.models.transformers.transformer_z_image", "ZImageTransformer2DModel"),
    "SanaTransformer2DModel": ("diffusers.models.transformers.sana_transformer", "SanaTransformer2DModel"),
    "QwenImageTransformer2DModel": (
        "diffusers.models.transformers.transformer_qwenimage",
        "QwenImageTransformer2DModel",
    ),
    "ControlNetModel": ("diffusers.models.controlnets.controlnet", "ControlNetModel"),
    "ControlNetUnionModel": ("diffusers.models.controlnets.controlnet_union", "ControlNetUnionModel"),
    "SD3ControlNetModel": ("diffusers.models.controlnets.controlnet_sd3", "SD3ControlNetModel"),
    "AutoencoderKL": ("diffusers.models.autoencoders.autoencoder_kl", "AutoencoderKL"),
    "AutoencoderKLFlux2": ("diffusers.models.autoencoders.autoencoder_kl_flux2", "AutoencoderKLFlux2"),
    "AutoencoderDC": ("diffusers.models.autoencoders.autoencoder_dc", "AutoencoderDC"),
    "AutoencoderKLQwenImage": (
        "diffusers.models.autoencoders.autoencoder_kl_qwenimage",
        "AutoencoderKLQwenImage",
    ),
    "AutoencoderTiny": ("diffusers.models.autoencoders.autoencoder_tiny", "AutoencoderTiny"),
    "CLIPTextModel": ("transformers.models.clip.modeling_clip", "CLIPTextModel"),
    "CLIPTextModelWithProjection": ("transformers.models.clip.modeling_clip", "CLIPTextModelWithProjection"),
    "CLIPVisionModelWithProjection": ("transformers.models.clip.modeling_clip", "CLIPVisionModelWithProjection"),
    "Gemma2Model": ("transformers.models.gemma2.modeling_gemma2", "Gemma2Model"),
    "Qwen2_5_VLForConditionalGeneration": (
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
    ),
    "Qwen3Model": ("transformers.models.qwen3.modeling_qwen3", "Qwen3Model"),
    # Language models without the layer that predicts words, and a tower for images.
    "Mistral3ForConditionalGeneration": ("transformers.models.mistral.modeling_mistral", "MistralModel"),
    "Qwen3ForCausalLM": ("transformers.models.qwen3.modeling_qwen3", "Qwen3Model"),
    "T5EncoderModel": ("transformers.models.t5.modeling_t5", "T5EncoderModel"),
    "DPTForDepthEstimation": ("transformers.models.dpt.modeling_dpt", "DPTForDepthEstimation"),
    "DepthAnythingForDepthEstimation": (
        "transformers.models.depth_anything.modeling_depth_anything",
        "DepthAnythingForDepthEstimation",
    ),
}
# Whether a class projects its pooled states, by class.
_CLIP_TEXT = {"CLIPTextModel": False, "CLIPTextModelWithProjection": True}
_TRANSFORMERS_KEYS = {
    "T5EncoderModel": T5_KEYS,
    "Qwen3Model": QWEN3_KEYS,
    "Qwen3ForCausalLM": QWEN3_KEYS,
    "CLIPVisionModelWithProjection": CLIP_VISION_KEYS,
    "DPTForDepthEstimation": DEPTH_KEYS,
    "DepthAnythingForDepthEstimation": DEPTH_KEYS,
    "Gemma2Model": GEMMA2_KEYS,
    "Mistral3ForConditionalGeneration": MISTRAL3_KEYS,
    "Qwen2_5_VLForConditionalGeneration": QWEN_VL_KEYS,
}
_TEXT_PREFIX = "text_model."
_TOKENIZERS = {
    "CLIPTokenizer": ("transformers.models.clip.tokenization_clip", "CLIPTokenizer"),
    "CLIPTokenizerFast": ("transformers.models.clip.tokenization_clip", "CLIPTokenizer"),
    "GemmaTokenizer": ("transformers.models.gemma.tokenization_gemma", "GemmaTokenizer"),
    "GemmaTokenizerFast": ("transformers.models.gemma.tokenization_gemma", "GemmaTokenizer"),
    # Its tokenizer: no image is a prompt.
    "PixtralProcessor": ("transformers.tokenization_utils_tokenizers", "TokenizersBackend"),
    "Qwen2Tokenizer": ("transformers.models.qwen2.tokenization_qwen2", "Qwen2Tokenizer"),
    "Qwen2TokenizerFast": ("transformers.models.qwen2.tokenization_qwen2", "Qwen2Tokenizer"),
    "T5Tokenizer": ("transformers.models.t5.tokenization_t5", "T5Tokenizer"),
    "T5TokenizerFast": ("transformers.models.t5.tokenization_t5", "T5Tokenizer"),
}
_MAX_TOKENS = 4096
_MOST_SHOWN = 400


def quiet_loaders() -> None:
    """Silence the libraries' progress bars and advice in a service's log (changes their global settings)."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def load_components(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return all components except the scheduler, in evaluation mode on `device`, text encoders in host memory with the
    checkpoint's `encoders_in_host`; stored half precision becomes `dtype`. Components that were read before are placed,
    others are read. Raises BadCheckpoint."""
    found = checkpoint.in_memory.items() or _packed(checkpoint, dtype)
    return {name: _settled(checkpoint, name, part, device) for name, part in found}


def read_components(
    checkpoint: Checkpoint, dtype: torch.dtype, hold: Callable[[torch.nn.Module], None] | None
) -> dict[str, Any]:
    """Return the same components in host memory; `hold` is called with each network that a device takes later. Raises
    BadCheckpoint."""
    found = {}
    for name, part in _packed(checkpoint, dtype):
        found[name] = part
        if hold is not None and isinstance(part, torch.nn.Module) and not checkpoint.stays_in_host(name):
            hold(part)
    return found


def load_network(
    directory: Path,
    files: Iterable[Path],
    class_name: str,
    device: torch.device,
    dtype: torch.dtype,
    sums: FileSums | None = None,
) -> Any:
    """Return the network of a class from a directory that holds only the network, with `files` validated before, and
    verified by `sums`. In evaluation mode on `device`. Raises BadCheckpoint, CorruptComponent."""
    path = directory / "config.json"
    config = network_config(path, read_json_object(path), _keys_of(class_name))
    with _refusing(directory, class_name):
        chosen = loaded_files(directory, files, dtype)
        return _placed(_load_network(_class(NETWORKS[class_name]), config, chosen, dtype, sums or FileSums()), device)


def _keys_of(class_name: str) -> Collection[str]:
    """Return the configuration keys of a network's class: a fixed list for transformers, which takes any key; the
    constructor's arguments for diffusers."""
    if class_name.startswith("CLIPText"):
        return CLIP_TEXT_KEYS
    if class_name in _TRANSFORMERS_KEYS:
        return _TRANSFORMERS_KEYS[class_name]
    if class_name not in NETWORKS:
        return ()
    return inspect.signature(_class(NETWORKS[class_name]).__init__).parameters.keys() - {"self"}


@contextmanager
def _refusing(folder: Path, what: str) -> Iterator[None]:
    """Raise the libraries' errors, of any type, as BadCheckpoint in one line."""
    try:
        yield
    except (BadCheckpoint, CorruptComponent):
        raise
    except Exception as error:
        # Some libraries state the reason after their first line.
        words = " ".join(str(error).split())
        shown = words if len(words) <= _MOST_SHOWN else f"{words[:_MOST_SHOWN]}…"
        raise BadCheckpoint(f"{folder}: {what} does not load: {shown}") from None


def _placed(component: Any, device: torch.device) -> Any:
    is_network = isinstance(component, torch.nn.Module)
    return component.to(device).eval().requires_grad_(False) if is_network else component


def _packed(checkpoint: Checkpoint, dtype: torch.dtype) -> Iterator[tuple[str, Any]]:
    for name in checkpoint.components:
        if name != "scheduler":
            part = _read_component(checkpoint, name, dtype)
            if isinstance(part, torch.nn.Module):
                pack(part, storage_of(checkpoint, name, dtype))
                logger.info("%s: %.1f MB of weights", name, weight_bytes(part) / 1e6)
            yield name, part


def _settled(checkpoint: Checkpoint, component: str, network: Any, device: torch.device) -> Any:
    if isinstance(network, torch.nn.Module) and checkpoint.stays_in_host(component):
        keep_in_host_memory(_placed(network, torch.device("cpu")), device)
        return network
    return _placed(network, device)


def _read_component(checkpoint: Checkpoint, component: str, dtype: torch.dtype) -> Any:
    name = checkpoint.components[component].name
    folder = checkpoint.component_directory(component)
    if name in _TOKENIZERS:
        with staged_tokenizer(checkpoint, component) as place, _refusing(folder, name):
            return _load_tokenizer(name, folder, place)
    config = network_config(folder / "config.json", checkpoint.config(component), _keys_of(name))
    if component in checkpoint.held and checkpoint.single_file is not None:
        with _refusing(checkpoint.single_file, f"{component} ({name})"):
            tensors = original_tensors(checkpoint.single_file, checkpoint.held, component, checkpoint.sums)
            return load_original(_class(NETWORKS[name]), tensors, config, dtype)
    with _refusing(folder, name):
        files = loaded_files(folder, checkpoint.component_files(component), dtype)
        # transformers loads the other activations.
        if name in _CLIP_TEXT and config.get("hidden_act", "quick_gelu") in ACTIVATIONS:
            return _load_clip_text(config, files, dtype, checkpoint.sums, projects=_CLIP_TEXT[name])
        network, part = _class(NETWORKS[name]), loaded_part(checkpoint, component)
        stated = _language_config(network, config) if part.layer_count else config
        return _load_network(network, stated, files, dtype, checkpoint.sums, part)


def _load_clip_text(
    config: Mapping[str, Any], files: Iterable[Path], dtype: torch.dtype, sums: FileSums, *, projects: bool
) -> ClipTextEncoder:
    """Return the encoder with its stored tensors, found under their older names too; other tensors are ignored."""
    with torch.device("meta"):
        encoder = ClipTextEncoder(ClipTextConfig.of(config), projects=projects)
    stored = {
        name.removeprefix(_TEXT_PREFIX): tensor
        for path in files
        for name, tensor in read_tensors(path, sums, dtype).items()
    }
    state = {name: _fitting(stored, name, like.shape).to(dtype) for name, like in encoder.state_dict().items()}
    encoder.load_state_dict(state, assign=True)
    return encoder


def _fitting(stored: Mapping[str, torch.Tensor], name: str, shape: torch.Size) -> torch.Tensor:
    if name not in stored:
        raise ValueError(f"there is no tensor {name!r}")
    if stored[name].shape != shape:
        found, wanted = tuple(stored[name].shape), tuple(shape)
        raise ValueError(f"tensor {name!r} is {found}, the configuration says {wanted}")
    return stored[name]


def _load_tokenizer(name: str, folder: Path, staged_folder: Path) -> Any:
    """Return a tokenizer. Raises BadCheckpoint if CLIP's maximum length, which prompts are padded to, is out of
    bounds."""
    tokenizer = _class(_TOKENIZERS[name]).from_pretrained(staged_folder, local_files_only=True)
    if name.startswith("CLIP") and not 2 <= tokenizer.model_max_length <= _MAX_TOKENS:
        given = tokenizer.model_max_length
        raise BadCheckpoint(f"{folder}: model_max_length={given} is not between 2 and {_MAX_TOKENS}")
    return tokenizer


def _class(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(import_module(module), name)


def _language_config(model_class: Any, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of a language model, also of one with a tower for images."""
    found: Mapping[str, Any] = config.get("text_config", config)
    wanted = model_class.config_class.model_type
    if (stated := found.get("model_type", wanted)) != wanted:
        raise ValueError(f"model_type={str(stated)[:40]} of the language model must be {wanted}")
    return found


def _load_network(
    model_class: Any,
    config: Mapping[str, Any],
    files: Iterable[Path],
    dtype: torch.dtype,
    sums: FileSums,
    part: LoadedPart = WHOLE,
) -> torch.nn.Module:
    is_diffusers = model_class.__module__.startswith("diffusers")
    # Values that a class keeps in full precision must not have been rounded.
    converts = is_diffusers and not model_class._keep_in_fp32_modules
    state: dict[str, torch.Tensor] = {}
    for path in files:
        found = read_tensors(path, sums, dtype if converts else None, lambda name: bool(part.name(name)))
        state |= {part.name(name): tensor for name, tensor in found.items()}
    if is_diffusers:
        network, missing = _diffusers_network(model_class, config, state, dtype)
    else:
        network, missing = _transformers_network(model_class, config, state, dtype, part.layer_count)
    if missing:
        rest = f" nor {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ValueError(f"there is no tensor {min(missing)!r}{rest}")
    return network


def _diffusers_network(
    model_class: Any, config: Mapping[str, Any], state: dict[str, torch.Tensor], dtype: torch.dtype
) -> tuple[torch.nn.Module, Collection[str]]:
    # Values that a constructor computes have the network's precision, as by diffusers' own loader.
    with init_empty_weights(), ThreadDtype(dtype):
        network: Any = model_class.from_config(config)
    network._fix_state_dict_keys_on_load(state)
    kept = tuple(model_class._keep_in_fp32_modules or ())
    for name, tensor in state.items():
        if tensor.is_floating_point():
            state[name] = tensor.to(torch.float32 if set(kept) & set(name.split(".")) else dtype)
    missing = network.load_state_dict(state, strict=False, assign=True).missing_keys
    return network, missing


def _transformers_network(
    model_class: Any, config: Mapping[str, Any], state: dict[str, torch.Tensor], dtype: torch.dtype, layer_count: int
) -> tuple[torch.nn.Module, Collection[str]]:
    """Return the network and the names of missing tensors, with its first `layer_count` layers; 0 for all."""
    keep_default_in_transformers()
    stated = model_class.config_class.from_dict(dict(config))
    if is_cut := 0 < layer_count < getattr(stated, "num_hidden_layers", 0):
        types = getattr(stated, "layer_types", None)
        fewer = {"layer_types": types[:layer_count]} if types else {}
        stated = model_class.config_class.from_dict({**config, **fewer, "num_hidden_layers": layer_count})
    network, found = model_class.from_pretrained(
        None, config=stated, state_dict=state, dtype=dtype, output_loading_info=True
    )
    if is_cut:
        # The states of a middle layer are not normalised.
        network.norm = torch.nn.Identity()
    return network, found["missing_keys"]
