"""Kernels for what a UNet's layers do between products: GEGLU, and group normalisation with SiLU (Katz, section 7).

| module | what it does |
| --- | --- |
| `reference` | what the kernels compute, by torch's own operations |
| `triton_kernels` | the kernels; imports Triton |
| `layers` | layers of diffusers with a kernel inside, over the very weights of those that they replace |
| `fusing` | puts such layers into a network, and takes them out again |
"""

from pentimento.diffusion.kernels.fusing import FusedLayers, KernelMode, fuse, kernels_for, runs_kernels
from pentimento.diffusion.kernels.layers import REFERENCE, Kernels

__all__ = ["REFERENCE", "FusedLayers", "KernelMode", "Kernels", "fuse", "kernels_for", "runs_kernels"]
