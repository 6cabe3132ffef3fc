"""Put layers with kernels into a network."""

import importlib.util
import logging
from functools import cache
from typing import Any

import torch
from torch import nn

from pentimento.diffusion.kernels.layers import FusedGeglu, FusedLayerNorm, FusedNorm, Kernels, SiluOfTimes
from pentimento.domain.errors import FailedPrecondition

logger = logging.getLogger(__name__)


class FusedLayers:
    """Record the layers that were replaced in one network."""

    def __init__(self) -> None:
        self._originals: list[tuple[nn.Module, str, nn.Module]] = []

    def __len__(self) -> int:
        return len(self._originals)

    def replace(self, owner: nn.Module, name: str, layer: nn.Module) -> None:
        """Replace the owner's layer `name` by `layer`."""
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, layer)

    def restore(self) -> None:
        """Restore every original layer. Harmless to call twice."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


def usual_kernels(device: torch.device) -> Kernels | None:
    """Return the kernels; None if they do not run on `device`."""
    return kernels_for(device) if runs_kernels(device) else None


def kernels_for(device: torch.device) -> Kernels:
    """Return the kernels. Raises FailedPrecondition (NO_TRITON, NO_CUDA) if they cannot run on `device`: on a CPU they
    run only under Triton's interpreter, which is for tests."""
    if importlib.util.find_spec("triton") is None:
        raise FailedPrecondition("NO_TRITON", "fused kernels need the package triton, which is not installed")
    import triton

    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise FailedPrecondition("NO_CUDA", f"fused kernels need a CUDA device; the model is on {device}")
    from pentimento.diffusion.kernels import triton_kernels as kernels

    return Kernels(kernels.group_norm, kernels.join, kernels.add_layer_norm, kernels.geglu)


@cache
def runs_kernels(device: torch.device) -> bool:
    """Return whether a kernel was compiled and run on `device`. Only GPUs have kernels; if Triton, its C compiler or
    its output folder is missing there, the log names it."""
    if device.type != "cuda":
        return False
    try:
        kernels_for(device).geglu(torch.zeros((1, 2), device=device))
        torch.cuda.synchronize(device)
    except Exception as error:  # any error of Triton: the model also runs without kernels
        logger.warning("passes run without fused kernels: %s", error, extra={"reason": "NO_KERNELS"})
        return False
    return True


def fuse(network: nn.Module, kernels: Kernels) -> FusedLayers:
    """Replace the network's GEGLUs and normalisations by layers over the same weights that compute with `kernels`, and
    convert the weights of its convolutions to channels last, the layout that the kernels take. Returns the record that
    restores the layers."""
    fused = FusedLayers()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in list(network.modules()):
        kind = type(module).__name__
        if kind == "FeedForward":
            _fuse_geglu(fused, module, kernels)
        elif kind == "ResnetBlock2D" and _activates_what_it_normalises(module):
            _fuse_norms(fused, module, ("norm1", "norm2"), kernels, activates=True)
            fused.replace(module, "nonlinearity", SiluOfTimes())
        elif kind == "Transformer2DModel" and isinstance(module.norm, nn.GroupNorm):
            _fuse_norms(fused, module, ("norm",), kernels, activates=False)
        elif kind == "BasicTransformerBlock" and module.norm_type == "layer_norm":
            _fuse_layer_norms(fused, module, kernels)
    if isinstance(getattr(network, "conv_act", None), nn.SiLU):
        _fuse_norms(fused, network, ("conv_norm_out",), kernels, activates=True)
        fused.replace(network, "conv_act", nn.Identity())
    return fused


def _fuse_geglu(fused: FusedLayers, layer: Any, kernels: Kernels) -> None:
    if type(layer.net[0]).__name__ == "GEGLU":
        fused.replace(layer.net, "0", FusedGeglu(layer.net[0].proj, kernels))


def _fuse_norms(
    fused: FusedLayers, owner: nn.Module, names: tuple[str, ...], kernels: Kernels, *, activates: bool
) -> None:
    for name in names:
        norm = getattr(owner, name)
        assert isinstance(norm, nn.GroupNorm)
        fused.replace(owner, name, FusedNorm(norm, kernels, activates=activates))


def _fuse_layer_norms(fused: FusedLayers, owner: nn.Module, kernels: Kernels) -> None:
    """Fuse the layer norms that have a weight and a bias."""
    for name in ("norm1", "norm2", "norm3"):
        norm = getattr(owner, name)
        if type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None:
            fused.replace(owner, name, FusedLayerNorm(norm, kernels))


def _activates_what_it_normalises(block: Any) -> bool:
    """Return whether SiLU follows the block's norms. Autoencoders' blocks have no timestep, and name the same norm
    differently."""
    kinds = ("default",) if block.time_emb_proj is not None else ("default", "group")
    return isinstance(block.nonlinearity, nn.SiLU) and block.time_embedding_norm in kinds
