"""ControlNets (Zhang et al. 2023): judged, loaded, and asked for residuals (Katz, section 5).

| module | what |
| --- | --- |
| `rules` | a directory judged before it is loaded |
| `loading` | from a directory to a ControlNet; whether it fits a model |
| `network` | what a ControlNet offers, and pictures as the rows of a pass |
| `unet_controlnet`, `transformer_controlnet` | those of Stable Diffusion and SDXL, and of SD3 |
| `setting` | how strongly one acts, in which steps, on which halves |
| `summing` | residuals scaled and added up |
| `local_control` | ControlNets beside the engine, in its process |
"""

from pentimento.diffusion.controlnets.loading import PLAIN, ControlNetForm, check_base, load_controlnet
from pentimento.diffusion.controlnets.local_control import Control, LocalControl, LocalControlNets
from pentimento.diffusion.controlnets.network import ControlNet, ControlNetInfo, ControlStep, ResidualsSoFar, unheard
from pentimento.diffusion.controlnets.rules import ControlNetCheckpoint, open_controlnet
from pentimento.diffusion.controlnets.setting import ControlSetting
from pentimento.diffusion.controlnets.summing import summed

__all__ = [
    "PLAIN",
    "Control",
    "ControlNet",
    "ControlNetCheckpoint",
    "ControlNetForm",
    "ControlNetInfo",
    "ControlSetting",
    "ControlStep",
    "LocalControl",
    "LocalControlNets",
    "ResidualsSoFar",
    "check_base",
    "load_controlnet",
    "open_controlnet",
    "summed",
    "unheard",
]
