"""Load a ControlNet from a directory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.checkpoint import BadCheckpoint, digest_files
from pentimento.diffusion.controlnets.network import ControlNet, ControlNetInfo
from pentimento.diffusion.controlnets.rules import ControlNetCheckpoint, open_controlnet
from pentimento.diffusion.controlnets.transformer_controlnet import TransformerControlNet
from pentimento.diffusion.controlnets.unet_controlnet import UNetControlNet
from pentimento.diffusion.families.unet_passes import covers
from pentimento.diffusion.kernels import Kernels, fuse
from pentimento.diffusion.model_registry import check_digest, registry_entry
from pentimento.diffusion.weights import load_network
from pentimento.files.file_sums import FileSums


@dataclass(frozen=True)
class ControlNetForm:
    """Choose how ControlNets of UNets run: `kernels` in their layers, and `compiler` as in `UNetControlNet`."""

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
    sums: FileSums | None = None,
) -> ControlNet:
    """Return the validated ControlNet of a directory; files in `sums` are verified while they are read. Raises
    BadCheckpoint with one line that names the fault, and FailedPrecondition if its digest differs from the expected one
    or, without one, from its registry's."""
    checkpoint = open_controlnet(directory)
    sums = sums or FileSums()
    network = load_network(directory, checkpoint.files, checkpoint.class_name, device, dtype, sums)
    digest = digest_files(directory, checkpoint.files, sums)
    check_digest(directory, digest, expected_digest)
    described = _describe(checkpoint, network, digest)
    if checkpoint.takes_latents:
        return TransformerControlNet(network, described, device, dtype)
    if form.kernels is not None:
        fuse(network, form.kernels)
    if checkpoint.kind_count and not covers(network):
        raise BadCheckpoint(f"{directory}: a {checkpoint.class_name} with these blocks is not supported")
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
        kind_count=checkpoint.kind_count,
    )
