"""Load networks from tensors under the names of the original code (CompVis, Stability AI), with diffusers' mappings."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from torch import Tensor

from pentimento.diffusion.file_layouts import DENOISER_PREFIX, GGUF, gguf_header, gguf_tensors, is_scale
from pentimento.diffusion.packed_weights import pack_blocks
from pentimento.diffusion.tensor_files import read_tensors
from pentimento.files.file_sums import FileSums

_TEXT_MAPPINGS = {
    "CLIPTextModel": "create_diffusers_clip_model_from_ldm",
    "CLIPTextModelWithProjection": "create_diffusers_clip_model_from_ldm",
    "T5EncoderModel": "create_diffusers_t5_model_from_checkpoint",
}


def original_tensors(file: Path, held: Mapping[str, str], component: str, sums: FileSums) -> dict[str, Tensor]:
    """Return the tensors of a component of a file: those with its prefix of `held`, or all under the denoiser's
    prefix."""
    prefix = held[component]
    if file.suffix == GGUF:
        found = gguf_tensors(file, [name for name in gguf_header(file).tensors if name.startswith(prefix)])
    else:
        found = read_tensors(file, sums, wanted=lambda name: name.startswith(prefix))
    scaled = _scaled(found)
    return scaled if prefix else {DENOISER_PREFIX + name: tensor for name, tensor in scaled.items()}


def _scaled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, those in FP8 multiplied by the scales that ComfyUI writes next to them."""
    scaled = {name: tensor for name, tensor in tensors.items() if not is_scale(name)}
    for name in filter(is_scale, tensors):
        weight = f"{name.rpartition('.')[0]}.weight"
        if weight not in scaled:
            raise ValueError(f"there is no tensor {weight!r} for the scale {name!r}")
        scaled[weight] = scaled[weight].float() * tensors[name].float()
    return scaled


def load_original(
    network_class: Any, tensors: dict[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype
) -> torch.nn.Module:
    """Return the network of a configuration. Raises ValueError for a missing tensor."""
    if network_class.__name__ in _TEXT_MAPPINGS:
        return _load_text(network_class, tensors, config, dtype)
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    with init_empty_weights():
        network: torch.nn.Module = network_class.from_config(config)
    convert = SINGLE_FILE_LOADABLE_CLASSES[network_class.__name__]["checkpoint_mapping_fn"]
    converted = convert(tensors, config=config)
    _check_complete(name for name in network.state_dict() if name not in converted)
    packed = pack_blocks(network, converted, dtype)
    state = {name: tensor.to(dtype, copy=True) for name, tensor in converted.items() if name not in packed}
    network.load_state_dict(state, strict=False, assign=True)
    return network


def _load_text(
    network_class: Any, tensors: dict[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype
) -> torch.nn.Module:
    from diffusers.loaders import single_file_utils

    name = network_class.__name__
    load = getattr(single_file_utils, _TEXT_MAPPINGS[name])
    # diffusers' conversion of an incomplete CLIP does not name the missing tensor.
    first = dtype if name == "T5EncoderModel" else None
    with TemporaryDirectory(prefix="pentimento-model-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        network: Any = load(network_class, tensors, "", folder, first, local_files_only=True)
    network.tie_weights()
    _check_complete(key for key, parameter in network.named_parameters() if parameter.is_meta)
    loaded: torch.nn.Module = network.to(dtype)
    return loaded


def _check_complete(missing: Iterable[str]) -> None:
    if name := next(iter(missing), ""):
        raise ValueError(f"there is no tensor for {name!r}")
