"""Validate a ControlNet's directory in diffusers' format, config.json and safetensors, before loading. Free of
torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint, component_files, read_json_object
from pentimento.domain.generation import ControlKind

CONFIG = "config.json"

_UNET_CLASS = "ControlNetModel"
_UNION_CLASS = "ControlNetUnionModel"
_TRANSFORMER_CLASS = "SD3ControlNetModel"
# Settings of other kinds of ControlNet, which would run wrongly here.
_FOREIGN_KEYS = ("class_embed_type", "num_class_embeds", "encoder_hid_dim_type")
_CHANNEL_ORDERS = ("rgb", "bgr")
# diffusers' default of `num_control_type`, and the most that have names.
_USUAL_KINDS, _MAX_KINDS = 6, len(ControlKind)


@dataclass(frozen=True)
class ControlNetCheckpoint:
    """Describe a valid directory: the class of its network, the family of the models that it controls, its
    configuration, and the files to load."""

    directory: Path
    class_name: str
    family: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]

    @property
    def takes_latents(self) -> bool:
        """Return whether its condition is a latent instead of pixels."""
        return self.class_name == _TRANSFORMER_CLASS

    @property
    def kind_count(self) -> int:
        """Return the number of kinds of conditions of a ControlNet-Union; 0 for others."""
        return int(self.config.get("num_control_type", _USUAL_KINDS)) if self.class_name == _UNION_CLASS else 0

    @property
    def unshifted(self) -> bool:
        """Return whether that latent is without the autoencoder's shift: diffusers' rule for ControlNets without pooled
        text."""
        return self.takes_latents and bool(self.config.get("force_zeros_for_pooled_projection", True))


def open_controlnet(directory: Path) -> ControlNetCheckpoint:
    """Return the validated directory. Raises BadCheckpoint with one line naming the class, the key or the file."""
    files = tuple(component_files(directory, directory))
    path = directory / CONFIG
    config = read_json_object(path)
    class_name = config.get("_class_name")
    families = {_UNET_CLASS: _unet_family, _TRANSFORMER_CLASS: _transformer_family, _UNION_CLASS: _union_family}
    if class_name not in tuple(families):
        raise BadCheckpoint(f"{path}: class {class_name!r} is not one of {', '.join(families)}")
    family = families[class_name](path, config)
    if not any(file.suffix == ".safetensors" for file in files):
        raise BadCheckpoint(f"{directory}: no safetensors file in it (pickled weights are never opened)")
    return ControlNetCheckpoint(directory, class_name, family, config, files)


def _unet_family(path: Path, config: Mapping[str, Any]) -> str:
    for key in _FOREIGN_KEYS:
        if config.get(key) is not None:
            raise BadCheckpoint(f"{path}: {key}={config[key]!r} is not supported")
    if config.get("global_pool_conditions", False):
        raise BadCheckpoint(f"{path}: global_pool_conditions is not supported")
    order = config.get("controlnet_conditioning_channel_order", "rgb")
    if order not in _CHANNEL_ORDERS:
        raise BadCheckpoint(
            f"{path}: controlnet_conditioning_channel_order must be rgb or bgr, got {str(order)[:40]!r}"
        )
    families = {None: "stable_diffusion", "text_time": "stable_diffusion_xl"}
    added = config.get("addition_embed_type")
    if not isinstance(added, str | None) or added not in families:
        raise BadCheckpoint(f"{path}: addition_embed_type must be 'text_time' or absent, got {str(added)[:40]!r}")
    return families[added]


def _union_family(path: Path, config: Mapping[str, Any]) -> str:
    """Return the family. Raises BadCheckpoint for a network for another one than SDXL, and for more kinds than have
    names."""
    family = _unet_family(path, config)
    if family != "stable_diffusion_xl":
        raise BadCheckpoint(f"{path}: addition_embed_type must be 'text_time' in a {_UNION_CLASS}")
    if config.get("controlnet_conditioning_channel_order", "rgb") != "rgb":
        raise BadCheckpoint(f"{path}: controlnet_conditioning_channel_order must be rgb in a {_UNION_CLASS}")
    count = config.get("num_control_type", _USUAL_KINDS)
    if type(count) is not int or not 1 <= count <= _MAX_KINDS:
        raise BadCheckpoint(f"{path}: num_control_type must be 1 to {_MAX_KINDS}, got {str(count)[:40]}")
    return family


def _transformer_family(path: Path, config: Mapping[str, Any]) -> str:
    """Return the family. Raises BadCheckpoint for a network without text states or positions: it would need the base
    model's, which no service has."""
    for key in ("joint_attention_dim", "use_pos_embed"):
        if key in config and not config[key]:
            raise BadCheckpoint(f"{path}: {key}={config[key]!r} is not supported")
    if config.get("extra_conditioning_channels", 0):
        raise BadCheckpoint(f"{path}: extra_conditioning_channels={config['extra_conditioning_channels']!r} is not 0")
    return "stable_diffusion_3"
