"""List the ControlNets that this replica can serve, from a registry of models on its disk."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.controlnets import PLAIN, ControlNetForm, load_controlnet, open_controlnet
from pentimento.files.adapter_registry import RegisteredAdapter
from services.controlnet_svc.residency.shelf import ShelvedNetwork


def shelved_networks(
    registered: Mapping[str, RegisteredAdapter], device: torch.device, dtype: torch.dtype, form: ControlNetForm = PLAIN
) -> Mapping[str, ShelvedNetwork]:
    """Return a registry's ControlNets as the shelf loads them; nothing is loaded yet."""
    return {
        name: ShelvedNetwork(
            one.adapter,
            weight_bytes(one.directory, dtype),
            partial(load_controlnet, one.directory, device, dtype, one.adapter.digest, form),
            *_condition_form(one.directory),
        )
        for name, one in registered.items()
    }


def _condition_form(directory: Path) -> tuple[bool, bool]:
    """Return whether a ControlNet's condition is a latent, and whether that is unshifted. Errors of the directory are
    reported when it is loaded, to the stream that needs it."""
    try:
        checkpoint = open_controlnet(directory)
    except BadCheckpoint:
        return False, False
    return checkpoint.takes_latents, checkpoint.unshifted


def weight_bytes(directory: Path, dtype: torch.dtype) -> int:
    """Return the size in `dtype` of weights stored in single precision; an overestimate for those stored in half."""
    stored = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return stored * dtype.itemsize // torch.float32.itemsize if dtype.itemsize < 4 else stored
