"""Validate and load ControlNets (Zhang et al. 2023), and compute their residuals (Katz, section 5).

| module | what it does |
| --- | --- |
| `rules` | validates a directory before it is loaded |
| `loading` | loads a ControlNet from a directory |
| `network` | defines a ControlNet's interface and setting, combines images into the rows of a pass, adds residuals up |
| `edges`, `depth` | compute conditions from photographs |
| `unet_controlnet` | runs ControlNets of Stable Diffusion and SDXL, and ControlNet-Union |
| `transformer_controlnet` | runs ControlNets of SD3 |
"""

from typing import TYPE_CHECKING

from pentimento.diffusion.controlnets.network import (
    ControlNet,
    ControlNetInfo,
    ControlSetting,
    ControlStep,
    ResidualsSoFar,
    place_of_kind,
    summed,
    unheard,
)
from pentimento.lazy_names import imported_when_used

if TYPE_CHECKING:
    from pentimento.diffusion.controlnets.loading import PLAIN, ControlNetForm, load_controlnet
    from pentimento.diffusion.controlnets.rules import ControlNetCheckpoint, open_controlnet

__all__ = [
    "PLAIN",
    "ControlNet",
    "ControlNetCheckpoint",
    "ControlNetForm",
    "ControlNetInfo",
    "ControlSetting",
    "ControlStep",
    "ResidualsSoFar",
    "load_controlnet",
    "open_controlnet",
    "place_of_kind",
    "summed",
    "unheard",
]

# Workers receive residuals and load no ControlNet.
__getattr__ = imported_when_used(
    __name__, {"loading": "PLAIN ControlNetForm load_controlnet", "rules": "ControlNetCheckpoint open_controlnet"}
)
