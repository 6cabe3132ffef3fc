"""Fuse a UNet's operations between products: GEGLU, and group normalisation with SiLU (Katz, section 7).

| module | what it does |
| --- | --- |
| `reference` | computes the kernels' results with torch's operations |
| `triton_kernels` | implements the kernels; imports Triton |
| `layers` | runs diffusers' layers with a kernel inside, over the weights of the layers that they replace |
| `fusing` | puts these layers into a network, and removes them |
"""

from typing import TYPE_CHECKING

from pentimento.lazy_names import imported_when_used

if TYPE_CHECKING:
    from pentimento.diffusion.kernels.fusing import FusedLayers, fuse, kernels_for, runs_kernels, usual_kernels
    from pentimento.diffusion.kernels.layers import REFERENCE, Kernels

__all__ = ["REFERENCE", "FusedLayers", "Kernels", "fuse", "kernels_for", "runs_kernels", "usual_kernels"]

# Most networks run without them.
__getattr__ = imported_when_used(
    __name__,
    {"fusing": "FusedLayers fuse kernels_for runs_kernels usual_kernels", "layers": "REFERENCE Kernels"},
)
