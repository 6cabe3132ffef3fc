"""ControlNets (Zhang et al. 2023): judged, loaded, and asked for residuals (Katz, section 5).

| module | what |
| --- | --- |
| `rules` | a directory judged before it is loaded |
| `loading` | from a directory to a ControlNet |
| `network` | what a ControlNet offers, and pictures as the rows of a pass |
| `unet_controlnet`, `transformer_controlnet` | those of Stable Diffusion and SDXL, and of SD3 |
| `setting` | how strongly one acts, and in which steps |
| `summing` | residuals scaled and added up |
"""

from pentimento.diffusion.controlnets.loading import PLAIN, ControlNetForm, load_controlnet
from pentimento.diffusion.controlnets.network import ControlNet, ControlNetInfo, ControlStep, ResidualsSoFar, unheard
from pentimento.diffusion.controlnets.rules import ControlNetCheckpoint, open_controlnet
from pentimento.diffusion.controlnets.setting import ControlSetting
from pentimento.diffusion.controlnets.summing import summed

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
    "summed",
    "unheard",
]
