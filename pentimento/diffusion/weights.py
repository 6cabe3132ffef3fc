"""Components of a checked checkpoint through the stock loaders of diffusers and transformers: local files, safetensors
only, no code from the directory."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint, weight_files

# The module of each class of model_index.json: submodules load in a fraction of the time of the packages' namespaces.
_MODULES = {
    "UNet2DConditionModel": "diffusers.models.unets.unet_2d_condition",
    "AutoencoderKL": "diffusers.models.autoencoders.autoencoder_kl",
    "AutoencoderTiny": "diffusers.models.autoencoders.autoencoder_tiny",
    "CLIPTextModel": "transformers.models.clip.modeling_clip",
    "CLIPTokenizer": "transformers.models.clip.tokenization_clip",
    "CLIPTokenizerFast": "transformers.models.clip.tokenization_clip",
}
_TOKENIZERS = {"CLIPTokenizer", "CLIPTokenizerFast"}


def quiet_loaders() -> None:
    """Progress bars and advice of the libraries do not belong in a service's log (changes their global settings)."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.set_verbosity_error()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def load_component(checkpoint: Checkpoint, component: str, device: torch.device, dtype: torch.dtype) -> Any:
    """The component in evaluation mode on `device`; stored half precision becomes `dtype`. Raises BadCheckpoint."""
    class_name = checkpoint.components[component].name
    folder = checkpoint.component_directory(component)
    try:
        if class_name in _TOKENIZERS:
            return _class(class_name).from_pretrained(folder, local_files_only=True)
        return _load_module(_class(class_name), folder, dtype).to(device).eval().requires_grad_(False)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise BadCheckpoint(f"{folder}: {class_name} does not load: {first_line}") from None


def _class(name: str) -> Any:
    return getattr(import_module(_MODULES[name]), name)


def _load_module(model_class: Any, folder: Path, dtype: torch.dtype) -> Any:
    options = {"local_files_only": True, "use_safetensors": True, "variant": _variant(folder)}
    key = "torch_dtype" if model_class.__module__.startswith("diffusers") else "dtype"
    return model_class.from_pretrained(folder, **options, **{key: dtype})


def _variant(folder: Path) -> str | None:
    """Half-precision copies are named `<stem>.fp16.safetensors`; the full one is taken where both are there."""
    stems = [path.name.removesuffix(".safetensors") for path in weight_files(folder)]
    if not stems:
        raise BadCheckpoint(f"{folder}: no safetensors file in it (pickled weights are never opened)")
    plain = [stem for stem in stems if "." not in stem]
    return None if plain else stems[0].split(".")[1]
