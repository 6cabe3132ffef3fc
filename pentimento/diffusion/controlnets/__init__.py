"""Validate and load ControlNets (Zhang et al. 2023), and compute their residuals (Katz, section 5).

| module | what it does |
| --- | --- |
| `rules` | validates a directory before it is loaded |
| `loading` | loads a ControlNet from a directory |
| `network` | defines a ControlNet's interface, and combines images into the rows of a pass |
| `unet_controlnet`, `transformer_controlnet` | run ControlNets of Stable Diffusion and SDXL, and of SD3 |
| `setting` | sets a ControlNet's strength and steps |
| `summing` | scales residuals and adds them up |
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
