"""Fuse a UNet's operations between products: GEGLU, and group normalisation with SiLU (Katz, section 7).

| module | what it does |
| --- | --- |
| `reference` | computes the kernels' results with torch's operations |
| `triton_kernels` | implements the kernels; imports Triton |
| `layers` | runs diffusers' layers with a kernel inside, over the weights of the layers that they replace |
| `fusing` | puts these layers into a network, and removes them |
"""

from pentimento.diffusion.kernels.fusing import FusedLayers, fuse, kernels_for, runs_kernels, usual_kernels
from pentimento.diffusion.kernels.layers import REFERENCE, Kernels

__all__ = ["REFERENCE", "FusedLayers", "Kernels", "fuse", "kernels_for", "runs_kernels", "usual_kernels"]
