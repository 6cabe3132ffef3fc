"""From a directory to a loaded ControlNet, and whether it fits a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import digest_files
from pentimento.diffusion.controlnets.network import ControlNet, ControlNetInfo
from pentimento.diffusion.controlnets.rules import ControlNetCheckpoint, open_controlnet
from pentimento.diffusion.controlnets.transformer_controlnet import TransformerControlNet
from pentimento.diffusion.controlnets.unet_controlnet import UNetControlNet
from pentimento.diffusion.families.model import DiffusionModel
from pentimento.diffusion.kernels import Kernels, fuse
from pentimento.diffusion.model_registry import check_digest, registry_entry
from pentimento.diffusion.weights import load_network
from pentimento.domain.errors import FailedPrecondition


@dataclass(frozen=True)
class ControlNetForm:
    """How ControlNets of UNets run. `kernels`: in their layers. `compiler`: see `UNetControlNet`."""

    kernels: Kernels | None = None
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function


PLAIN = ControlNetForm()


@torch.inference_mode(mode=False)  # as `load_model`
def load_controlnet(
    directory: Path,
    device: torch.device,
    dtype: torch.dtype,
    expected_digest: str = "",
    form: ControlNetForm = PLAIN,
) -> ControlNet:
    """Return the ControlNet of a directory after checking it. Raises BadCheckpoint with one line naming what is wrong,
    FailedPrecondition when its digest is another than expected, or than its registry says where nothing is expected."""
    checkpoint = open_controlnet(directory)
    digest = digest_files(directory, checkpoint.files)
    check_digest(directory, digest, expected_digest)
    network = load_network(directory, checkpoint.files, checkpoint.class_name, device, dtype)
    described = _describe(checkpoint, network, digest)
    if checkpoint.takes_latents:
        return TransformerControlNet(network, described, device, dtype)
    if form.kernels is not None:
        fuse(network, form.kernels)
    return UNetControlNet(network, described, device, dtype, form.compiler)


def _describe(checkpoint: ControlNetCheckpoint, network: Any, digest: str) -> ControlNetInfo:
    base = registry_entry(checkpoint.directory).get("base")
    config = network.config
    return ControlNetInfo(
        family=checkpoint.family,
        digest=digest,
        base_digest=str(base.get("digest", "")) if isinstance(base, dict) else "",
        latent_channels=config.in_channels,
        condition_channels=config.in_channels if checkpoint.takes_latents else config.conditioning_channels,
        takes_latents=checkpoint.takes_latents,
        unshifted=checkpoint.unshifted,
    )


def check_base(controlnet: ControlNet, model: DiffusionModel) -> None:
    """Check that a ControlNet's residuals fit a model: the family, and the shape of what they are added to. A model
    other than the one that it was trained for may well be controlled by it. Raises FailedPrecondition naming what
    differs and both sides of it."""
    info = controlnet.info
    if info.family != model.info.family:
        message = f"the ControlNet is for {info.family}, the model is of {model.info.family}"
        raise FailedPrecondition("CONTROLNET_MISMATCH", message)
    given, taken = _layout(controlnet.config), _layout(dict(model.denoiser.config))  # type: ignore[arg-type]
    for key, value in given.items():
        if taken[key] != value:
            message = f"{key}: the ControlNet has {value}, the model {taken[key]}"
            raise FailedPrecondition("CONTROLNET_MISMATCH", message)


def _layout(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the shapes of residuals, by the keys of a configuration."""
    if "block_out_channels" not in config:
        inner = config["num_attention_heads"] * config["attention_head_dim"]
        keys = ("in_channels", "patch_size", "joint_attention_dim", "pooled_projection_dim")
        return {**{key: config[key] for key in keys}, "width": inner}
    blocks, layers = config["block_out_channels"], config["layers_per_block"]
    each = [layers] * len(blocks) if isinstance(layers, int) else list(layers)
    return {"in_channels": config["in_channels"], "block_out_channels": list(blocks), "layers_per_block": each}
